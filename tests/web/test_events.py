"""Listeners for events hear of each transition that they may see, also after they were away."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from dispatcher.message import new_id
from dispatcher.telemetry.journal import Event, Transition
from dispatcher.web import Right, api, bounds, keys
from dispatcher.web import calls as api_calls
from dispatcher.web.keys import ApiKeys
from dispatcher.web.problems import Refused
from tests.support.browser import served
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.waiting import DEADLINE, wait_until
from tests.web.conftest import Calls, all_but, bearer, caller
from tests.web.test_keys import SCOPES

HOUR = timedelta(hours=1)


@pytest.fixture
def telling(build: Build) -> House:
    """Give a house whose clock is an hour slow, and whose processes tell their transitions."""
    return build(clock=hour_ago(), events_kept=1_000, quotas=["1000/minute"], scopes=SCOPES)


@pytest.fixture
def address(telling: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of a server that looks for events often."""
    monkeypatch.setattr(api_calls, "_LOOK_SECONDS", 0.05)
    with served(api(telling.dispatcher)) as address:
        yield address


@contextmanager
def listener(
    address: str, key: dict[str, str], after: str | None = None
) -> Iterator[Iterator[tuple[str, str, Any]]]:
    """Listen; give an iterator of events as id, name and data. It returns once it has begun."""
    headers = key if after is None else {**key, "Last-Event-ID": after}
    with httpx2.stream("GET", f"{address}/v1/events", headers=headers, timeout=DEADLINE) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines).startswith("retry: ")
        yield _events(lines)


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


def test_a_listener_hears_each_transition_and_goes_on_where_it_was(
    telling: House, address: str
) -> None:
    key = bearer(telling)
    with listener(address, key) as heard:
        message = telling.submit("ada", send_in=HOUR)
        telling.dispatcher.reschedule(message.id, send_in=2 * HOUR)
        first = [next(heard) for _ in range(2)]
    telling.dispatcher.cancel(message.id)  # while nothing listens
    with listener(address, key, after=first[-1][0]) as heard:
        second = next(heard)
    names = [name for _, name, _ in (*first, second)]
    assert names == ["scheduled", "rescheduled", "cancelled"]
    with listener(address, key) as heard:
        telling.deliver(telling.submit("ada"))
        assert [next(heard)[1] for _ in range(2)] == ["scheduled", "sent"], "a worker tells, too"
    for place, name, data in (*first, second):
        assert data["id"] == place
        assert data["message_id"] == str(message.id)
        assert (data["transition"], data["channel"]) == (name, message.channel)


def test_a_listener_hears_of_its_own_messages_alone(telling: House, address: str) -> None:
    bound = bearer(telling, "acme", scope=("tenant", "acme"))
    texting = bearer(telling, "texting", channels=["file"])
    with listener(address, bound) as of_acme, listener(address, texting) as of_file:
        telling.submit("ada", send_in=HOUR, scopes={"tenant": "other"})
        own = telling.submit("eve", send_in=HOUR, scopes={"tenant": "acme"})
        filed = telling.submit("eve", send_in=HOUR, channel="file")
        assert next(of_acme)[2]["message_id"] == str(own.id)
        assert next(of_file)[2]["message_id"] == str(filed.id)


def test_a_revoked_key_hears_nothing_further(
    telling: House, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_TTL_SECONDS", 0.1)
    key = bearer(telling)
    with listener(address, key) as heard:
        telling.submit("ada", send_in=HOUR)
        next(heard)
        ApiKeys(telling.parts.database).revoke("shop")
        assert list(heard) == []  # the server ends the answer


def test_an_id_that_is_none_is_refused(telling: House) -> None:
    shop = caller(telling)
    for after in ("now", "1", "-1-1", "1-1\u00e9"):
        answer = shop.get("/v1/events", headers=[(b"Last-Event-ID", after.encode())])
        assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


def test_without_the_setting_no_process_writes_and_the_answer_names_it(
    house: House, calls: Calls
) -> None:
    answer = calls().get("/v1/events")
    assert answer.status_code == 404
    assert "DISPATCHER_EVENTS_KEPT" in answer.json()["detail"]
    house.submit("ada")
    assert "events" not in vars(house.parts)
    blind = calls("blind", rights=all_but(Right.MESSAGES_READ))
    assert blind.get("/v1/events").status_code == 403


def test_a_message_is_accepted_and_the_loss_is_logged_where_redis_takes_no_events(
    telling: House, caplog: pytest.LogCaptureFixture
) -> None:
    telling.parts.plain_redis.set(telling.parts.events._name, "no stream")
    telling.submit("ada", send_in=HOUR)
    wait_until(lambda: "events: 1 notifications dropped" in caplog.text)


def test_a_listener_is_told_of_a_gap_while_it_listens_and_after_it_was_away(
    telling: House, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, key = telling.parts.events, bearer(telling)
    with listener(address, key) as heard:
        telling.submit("ada", send_in=HOUR)
        first = next(heard)[0]
        monkeypatch.setattr(stream, "_keep", 1)
        # In one step, so that the listener does not read what is about to go.
        client = telling.parts.plain_redis
        whole = SimpleNamespace(pipeline=lambda **_: client.pipeline(), xrevrange=client.xrevrange)
        monkeypatch.setattr(stream, "_connect", lambda: whole)
        stream._write([Event(Transition.SENT, new_id(), "memory", {}) for _ in range(3_000)])
        assert [next(heard)[1] for _ in range(2)] == ["gap", "sent"]
    for after in (first, "0-0"):  # the latter: the stream was empty when the listener began
        with listener(address, key, after=after) as heard:
            assert [next(heard)[1] for _ in range(2)] == ["gap", "sent"]


def test_what_lasts_is_bounded_by_key_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an answer that is never sent, because its call was cancelled before, has no place."""
    monkeypatch.setitem(bounds.MOST, "listeners", (2, 3, 60, "listeners"))
    places = bounds.Streams()

    async def lines() -> AsyncIterator[str]:
        yield ""

    for _ in range(4):
        bounds.StreamedResponse("listeners", lines(), places, "shop")
    open_ones = [bounds.StreamedResponse("listeners", lines(), places, "shop") for _ in range(2)]
    for name, status in (("shop", 429), ("other", None), ("third", 503)):
        if status is None:
            open_ones.append(bounds.StreamedResponse("listeners", lines(), places, name))
            continue
        with pytest.raises(Refused) as refused:
            bounds.StreamedResponse("listeners", lines(), places, name)
        assert (refused.value.status, refused.value.headers) == (status, {"Retry-After": "60"})
    bounds.StreamedResponse("batches", lines(), places, "shop")  # which has places of its own
    open_ones.clear()
    bounds.StreamedResponse("listeners", lines(), places, "third")


def test_a_batch_whose_caller_falls_silent_ends_with_a_verdict(
    telling: House, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_calls, "_LINE_SECONDS", 0.2)
    line = b'{"channel": "memory", "recipient": "ada", "body": {}, "send_in_seconds": 3600}\n'
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)) as slow:
        slow.putrequest("POST", "/v1/messages/batch")
        slow.putheader("Authorization", bearer(telling)["Authorization"])
        slow.putheader("Content-Type", "application/x-ndjson")
        slow.putheader("Transfer-Encoding", "chunked")
        slow.endheaders(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        verdicts = [json.loads(verdict) for verdict in slow.getresponse()]
    assert [(verdict["number"], verdict["status"]) for verdict in verdicts] == [(0, 201), (1, 408)]
    assert verdicts[1]["problem"]["type"].endswith(":too-slow")
