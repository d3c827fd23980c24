"""Templates and status URLs, on the command line and in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.house import House

URL = "https://shop.example/hooks/hunter2?token=hunter2"
CHANNELS = {
    "memory": {"transport": "memory", "templates": {"hello": {"text": "Hi {{ name }}"}}},
    "status": {"transport": "webhook", "options": {"payload": "body"}},
}


@pytest.fixture(autouse=True)
def channels(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_CHANNELS", json.dumps(CHANNELS))
    monkeypatch.setenv("DISPATCHER_STATUS_CHANNEL", "status")


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


def test_show_says_which_host_is_told_and_what_was(house: House, run: Run) -> None:
    ran = run(
        *("submit", "--channel", "memory", "--recipient", "ada", "--text", "hello"),
        *("--send-in", "1 hour", "--status-url", URL, "--json"),
    )
    assert ran.code == 0
    assert "shop.example" not in ran.out
    message_id = ran.data["id"]
    for notified, told in ((None, "nothing yet"), ("cancelled", "cancelled")):
        if notified is not None:
            house.change([house.dispatcher.cancel(message_id)], notified_status=notified)
        shown, people = run("show", message_id, "--json"), run("show", message_id)
        host, status = (shown.data[name] for name in ("status_host", "notified_status"))
        assert (host, status) == ("shop.example", notified)
        assert f"{told} to shop.example" in people.out
        assert "hunter2" not in shown.out + people.out


def test_a_file_says_for_each_row_who_is_told(house: House, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "messages.csv"
    path.write_text(f"recipient,text,send_in,status_url\nada,a,1 hour,{URL}\nben,b,1 hour,\n")
    ran = run("import", str(path), "--channel", "memory", "--json")
    assert (ran.code, ran.data["accepted"]) == (0, 2)
    found = {each.recipient: each for each in house.dispatcher.select()}
    assert house.columns(found["ada"], "status_url", "notified_status") == (URL, "scheduled")
    assert house.columns(found["ben"], "status_url", "notified_status") == (None, None)


def test_a_url_that_is_refused_is_not_repeated(run: Run) -> None:
    ran = run(
        *("submit", "--channel", "memory", "--recipient", "ada", "--text", "hello"),
        *("--send-in", "1 hour", "--status-url", "http://shop.example/hunter2"),
    )
    assert ran.code == 2
    assert "--status-url: it has another scheme" in ran.err
    assert "hunter2" not in ran.err
