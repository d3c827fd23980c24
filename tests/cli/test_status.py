"""The house at a glance: true numbers, what is late in red, no harm when something is away."""

from __future__ import annotations

import re
import signal
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Dispatcher, Message, StoreUnavailable
from dispatcher.cli import output
from dispatcher.operations.overview import Overview
from dispatcher.telemetry.liveness import LOST_AFTER, Kind
from tests.cli.conftest import Run, house_with
from tests.support.house import House

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def messages(house: House) -> list[Message]:
    """Give messages that wait, are overdue, and were cancelled."""
    messages = [
        house.submit("ada", send_in=10 * MINUTE),
        house.submit("ada", send_in=12 * MINUTE),
        house.submit("ben", channel="file", send_in=2 * HOUR),
        house.submit("cyd", send_in=SECOND),
        house.submit("dan", send_in=HOUR / 2),
    ]
    house.dispatcher.cancel(messages[4].id)
    long_ago = house.database_time() - 3 * MINUTE
    house.change([messages[3]], next_attempt_at=long_ago, enqueue_at=long_ago)
    return messages


def test_status_tells_what_is_wrong(run: Run, messages: list[Message]) -> None:
    ran = run("status", "--json")
    assert (ran.code, ran.err) == (0, "")
    data = ran.data
    counts = data["counts"]["memory"]
    assert (counts["scheduled"], counts["cancelled"]) == (3, 1)
    assert (data["counts"]["file"]["scheduled"], data["counts_complete"]) == (1, True)
    assert (data["overdue"]["messages"], data["overdue"]["oldest"]) == (1, str(messages[3].id))
    assert 170 < data["overdue"]["longest"] < 300
    assert (sum(data["load"]["minutes"]), len(data["load"]["minutes"])) == (2, 60)
    assert (data["held"], data["limits"], data["silence"]) == (0, [], None)
    assert (data["workers"], data["beats"], data["duties"]) == ([], [], {})
    out = run("status").out
    assert "1, the oldest for 3 minutes" in out
    assert f"dispatcher show {messages[3].id}" in out
    assert "no worker is alive" in out
    assert "no beat is alive" in out
    assert re.search(r"^sweep +enqueue_due +never", out, re.MULTILINE)
    assert "2 due, at most 1 a minute" in out
    assert "\x1b" not in out, "no colours where it is piped"


def test_an_empty_house_is_said_so(house: House, run: Run) -> None:
    out = run("status").out
    assert "no messages" in out
    for name in ("overdue", "held", "paused", "rejected"):
        assert re.search(rf"^{name} +none", out, re.MULTILINE)
    assert "nothing is due within 1 day" in run("top").out
    assert "no submit was refused since" in run("refusals").out
    assert run("held").out == "no messages are held\n"
    assert run("held", "--json").out == ""


def test_status_shows_workers_beats_and_duties(house: House, run: Run) -> None:
    signs = house.parts.signs
    signs.note(Kind.WORKER, {"celery@one 7": 0 * SECOND, "celery@two 8": LOST_AFTER + MINUTE})
    signs.note(Kind.BEAT, {"beat@one 9": 0 * SECOND})
    signs.note(Kind.DUTY, {"rescue": 0 * SECOND, "reconcile": 2 * HOUR, "prune": 5 * MINUTE})
    duties = house.dispatcher.status().duties or ()
    alive = {sign.name: sign.is_alive for sign in duties}
    assert alive == {"rescue": True, "reconcile": False, "prune": True}, "by their intervals"
    out = run("status").out
    for seen in ("worker celery@one 7 +", "worker celery@two 8 +", "beat +beat@one 9 +"):
        assert re.search(rf"^{seen}\d+ (s|ms|minutes?) ago", out, re.MULTILINE)
    assert re.search("^sweep +reconcile +2 hours ago", out, re.MULTILINE)
    workers = run("status", "--json").data["workers"]
    assert [worker["alive"] for worker in workers] == [True, False]


LIMITED = {"memory": {"transport": "memory", "limits": ["10/minute"], "concurrency": 3}}


@house_with(channels=LIMITED)
def test_the_fill_of_limits_is_looked_at_and_changes_nothing(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = house.submit(send_in=HOUR)
    before = house.snapshot()
    [memory] = run("status", "--json").data["limits"]
    assert memory == {
        "channel": "memory",
        "limits": [
            {"limit": "10/minute", "used": 0, "most": 10},
            {"limit": "concurrency 3", "used": 0, "most": 3},
        ],
        "waiting": 0,
        "closed_until": None,
    }
    assert "0/10" in run("status").out
    monkeypatch.setenv("DISPATCHER_QUOTAS", "1/20 days")
    for command in (["status"], ["top"], ["show", str(message.id)]):
        assert run(*command).err == ""
    assert house.snapshot() == before, "though its settings reach further than Redis is complete"


def test_without_redis_the_rest_is_told(
    house: House, run: Run, messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", "redis://127.0.0.1:1")
    data = run("status", "--json").data
    assert data["counts"]["memory"]["scheduled"] == 3
    assert (data["workers"], data["limits"]) == (None, None)
    assert "cannot be reached" in data["silence"]
    assert "because Redis does not answer" in run("status").out
    ranking = run("top", "--json").data
    assert "cannot be reached" in ranking["silence"]
    assert [top["name"] for top in ranking["tops"]] == ["ada", "ben", "cyd"]


@pytest.mark.parametrize("form", ["json", "piped", "terminal"])
def test_watching_goes_on_where_the_store_is_away_and_ends_with_ctrl_c(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    read, looks = Dispatcher.status, 0

    def status(self: Dispatcher, **asked: Any) -> Overview:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise StoreUnavailable("gone")
        if looks == 3:
            signal.raise_signal(signal.SIGINT)
        return read(self, **asked)

    monkeypatch.setattr(Dispatcher, "status", status)
    monkeypatch.setattr(output.out, "_force_terminal", form == "terminal")
    monkeypatch.setattr(output.out, "is_interactive", form == "terminal")
    ran = run("status", "--watch", "--every", "0.1", *(["--json"] if form == "json" else []))
    assert (ran.code, ran.err, looks) == (0, "", 3)
    assert ran.out.count('"now"' if form == "json" else "dispatcher status") == 2
    assert ran.out.count("gone") == 1


def test_top_ranks_by_messages_and_tells_the_fullest_quota(
    house: House, run: Run, messages: list[Message]
) -> None:
    for number in range(3):
        house.submit("ada", send_in=(14 + 2 * number) * MINUTE)
    ranking = run("top", "--json").data
    ada = ranking["tops"][0]
    assert [top["name"] for top in ranking["tops"]] == ["ada", "ben", "cyd"]
    assert (ada["messages"], ada["fullest"]["quota"]) == (5, "5/hour")
    assert (ada["fullest"]["booked"], ada["fullest"]["most"]) == (5, 5)
    out = run("top", "--limit", "1").out
    assert re.search("5/5 +5/hour", out)
    assert "ben" not in out
    by_channel = run("top", "--of", "channel", "--json").data["tops"]
    assert [(top["name"], top["messages"]) for top in by_channel] == [("memory", 6), ("file", 1)]
    assert by_channel[0]["fullest"] is None, "no quota counts a channel here"
    near = run("top", "--of", "recipient", "--within", "1 minute", "--json").data["tops"]
    assert [top["name"] for top in near] == ["cyd"]
    assert run("top", "--within", "1", "--of", "channel").code == 0


def test_top_by_fill_puts_the_fullest_first(house: House, run: Run) -> None:
    for number in range(4):
        house.submit("ada", send_in=(10 + 20 * number) * MINUTE)
    for number in range(3):
        house.submit("ben", send_in=(10 + 2 * number) * MINUTE)
    by_messages = run("top", "--json").data["tops"]
    assert [top["name"] for top in by_messages] == ["ada", "ben"]
    for top in by_messages:
        assert top["fullest"]["booked"] == 3
    house.submit("ben", channel="file", send_in=18 * MINUTE)
    by_fill = run("top", "--by", "fill", "--json").data["tops"]
    assert [top["name"] for top in by_fill] == ["ben", "ada"]
    [fullest] = run("top", "--by", "fill", "--limit", "1", "--json").data["tops"]
    assert fullest["name"] == "ben", "though ada has as many messages"


def test_the_load_to_come_by_channel(house: House, run: Run, messages: list[Message]) -> None:
    data = run("load", "--json").data
    [file, memory] = data["channels"]
    assert (file["channel"], memory["channel"], memory["late"]) == ("file", "memory", 1)
    figures = [(minute["due"], minute["overbooked"]) for minute in memory["minutes"]]
    assert figures == [(1, False)] * 2
    out = run("load").out
    assert re.search(r"memory +2 due, 1 late; no limits", out)
    assert out.count(f"{messages[0].send_at:%Y-%m-%d %H:%M}:00") == 2, "when it is due, and leaves"


def test_refusals_by_rule(house: House, run: Run) -> None:
    house.submit("ada", send_in=HOUR)
    for _ in range(3):
        assert run("submit", "--channel", "memory", "--recipient", "ada", "--text", "hi",
                   "--send-in", "1 hour").code == 3  # fmt: skip
    out = run("refusals").out
    assert re.search(r"^1/minute +3 ", out, re.MULTILINE)
    data = run("refusals", "--json").data
    assert (data["rules"][0]["refused"], len(data["last"])) == (3, 3)


def test_status_counts_a_campaign(house: House, run: Run) -> None:
    message = house.submit("ada", send_in=HOUR, campaign="summer")
    house.submit("ben", send_in=HOUR)
    house.submit("cyd", send_in=HOUR, campaign="summer", channel="file")
    house.dispatcher.cancel(message.id)
    counts = run("status", "--campaign", "summer", "--json").data["counts"]
    assert (counts["memory"]["cancelled"], counts["memory"]["scheduled"]) == (1, 0)
    assert counts["file"]["scheduled"] == 1
    out = run("status", "--campaign", "summer").out
    assert re.search(r"^all +1 +0 +0 +0 +0 +0 +1", out, re.MULTILINE)
