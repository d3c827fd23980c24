"""Who is told what becomes of a message, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.house import House

URL = "https://shop.example/hooks/hunter2?token=hunter2"
CHANNELS = {
    "memory": {"transport": "memory"},
    "status": {"transport": "webhook", "options": {"payload": "body"}},
}


@pytest.fixture(autouse=True)
def told_of(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands know a channel that tells."""
    del house
    monkeypatch.setenv("DISPATCHER_CHANNELS", json.dumps(CHANNELS))
    monkeypatch.setenv("DISPATCHER_STATUS_CHANNEL", "status")


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
