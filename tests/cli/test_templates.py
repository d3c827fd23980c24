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


def test_submit_takes_a_template_with_its_data(run: Run) -> None:
    to = ("submit", "--channel", "memory", "--recipient", "ada", "--send-in", "600")
    template = ("--template", "hello")
    ran = run(*to, *template, "--data", '{"name": "Ada"}', "--json")
    assert ran.data["body"] == {"text": "Hi Ada"}
    for wrong in (
        template, (*template, "--data", "name"), (*template, "--text", "x"), ("--data", "{}"),
    ):  # fmt: skip
        assert run(*to, *wrong).code == 2


def test_update_takes_a_template_with_its_data(house: House, run: Run) -> None:
    message = house.submit()
    template = ("--template", "hello")
    ran = run("update", str(message.id), *template, "--data", '{"name": "Ada"}', "--json")
    assert ran.data["body"] == {"text": "Hi Ada"}
    for wrong in (
        template, (*template, "--data", "name"), (*template, "--text", "x"), ("--data", "{}"), (),
    ):  # fmt: skip
        assert run("update", str(message.id), *wrong).code == 2
    assert house.again(message).body == {"text": "Hi Ada"}


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
