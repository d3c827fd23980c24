"""Templates on the command line and in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.house import House

CHANNELS = {"memory": {"transport": "memory", "templates": {"hello": {"text": "Hi {{ name }}"}}}}


@pytest.fixture(autouse=True)
def with_templates(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_CHANNELS", json.dumps(CHANNELS))


@pytest.mark.parametrize("command", ["submit", "update"])
def test_a_command_takes_a_template_with_its_data(house: House, run: Run, command: str) -> None:
    message = house.submit("ben")
    words = {
        "submit": ("submit", "--channel=memory", "--recipient=ada", "--send-in=600"),
        "update": ("update", str(message.id)),
    }[command]
    template = ("--template", "hello")
    data = run(*words, *template, "--data", '{"name": "Ada"}', "--json").data
    for wrong in (
        template, (*template, "--data", "name"), (*template, "--text", "x"), ("--data", "{}"), (),
    ):  # fmt: skip
        assert run(*words, *wrong).code == 2
    assert house.dispatcher.get(data["id"]).body == {"text": "Hi Ada"}
    assert run("update", str(message.id), "--text", "good evening").code == 0
    assert house.again(message).body == {"text": "good evening"}


def test_rows_name_a_template_and_its_data(house: House, run: Run) -> None:
    rows = [
        {"recipient": name, "template": "hello", "data": {"name": name}, "send_in": 600}
        for name in ("ada", "ben")
    ]
    lines = "\n".join(map(json.dumps, [*rows, {"recipient": "cid", "send_in": 600}]))
    Path("rows.jsonl").write_text(lines, encoding="utf-8")
    assert run("import", "rows.jsonl", "--channel", "memory", "--json").code != 0
    table = 'recipient,template,data,send_in\ndan,hello,"{""name"": ""dan""}",600\n'
    Path("more.csv").write_text(table, encoding="utf-8")
    assert run("import", "more.csv", "--channel", "memory").code == 0
    bodies = {each.recipient: each.body["text"] for each in house.dispatcher.select()}
    assert bodies == {"ada": "Hi ada", "ben": "Hi ben", "dan": "Hi dan"}
