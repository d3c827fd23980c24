"""Templates and status URLs, on the command line and in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, house_with
from tests.support.house import House

URL = "https://shop.example/hooks/hunter2?token=hunter2"
CHANNELS = {
    "memory": {"transport": "memory", "templates": {"hello": {"text": "Hi {{ name }}"}}},
    "status": {"transport": "webhook", "options": {"payload": "body"}},
}


pytestmark = house_with(channels=CHANNELS, status_channel="status")


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


def test_rows_name_a_template_its_data_and_who_is_told(house: House, run: Run) -> None:
    ada = {"recipient": "ada", "template": "hello", "data": {"name": "ada"}, "send_in": 600}
    lines = "\n".join(
        map(json.dumps, [ada | {"status_url": URL}, {"recipient": "cid", "send_in": 600}])
    )
    Path("rows.jsonl").write_text(lines, encoding="utf-8")
    assert run("import", "rows.jsonl", "--channel", "memory", "--json").code != 0
    table = 'recipient,template,data,send_in,status_url\ndan,hello,"{""name"": ""dan""}",600,\n'
    Path("more.csv").write_text(table, encoding="utf-8")
    assert run("import", "more.csv", "--channel", "memory").code == 0
    messages = {message.recipient: message for message in house.dispatcher.select()}
    assert {name: message.body["text"] for name, message in messages.items()} == {
        "ada": "Hi ada", "dan": "Hi dan",
    }  # fmt: skip
    told = {name: house.columns(message, "status_url")[0] for name, message in messages.items()}
    assert told == {"ada": URL, "dan": None}


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
