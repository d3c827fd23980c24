"""What one call for many messages comes to is what calls for each of them come to, in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher import Draft, Message, PermanentFailure, QuietHours, QuotaExceeded, Settings
from dispatcher.errors import DispatcherError
from dispatcher.message import Rejection
from dispatcher.testing import MemoryDispatcher
from tests.support.examples import a_third_of, examples
from tests.support.reserving import little_at_once

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

QUOTAS = ("2/minute", "1/minute, 3/hour", "2/day in UTC", "3/day in Europe/Berlin, 1/minute")
drafts = st.fixed_dictionaries(
    {
        "recipient": st.sampled_from(["ada", "bob", "eve"]),
        "tenant": st.sampled_from([None, "acme", "umbrella"]),
        "hours": st.sampled_from([1, 2, 9, 11, 25, 49, 73]),
        "seconds": st.sampled_from([0, 20, 59, 60]),
        "conflict": st.sampled_from(["reject", "shift"]),
        "key": st.sampled_from([None, None, None, "one", "two"]),
    }
)
numbers = st.lists(st.integers(0, 15), min_size=1, max_size=10, unique=True)
calls = st.one_of(
    st.tuples(st.just("submit"), st.lists(drafts, min_size=1, max_size=8)),
    st.tuples(
        st.just("move"),
        numbers,
        st.sampled_from([timedelta(minutes=1), HOUR, 10 * HOUR, DAY]),
        st.sampled_from(["reject", "shift"]),
    ),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("retry"), numbers),
    st.tuples(st.just("travel"), st.sampled_from([HOUR, 30 * HOUR])),
)


class Side:
    """A dispatcher whose messages have numbers, and how it answers a call."""

    def __init__(self, chosen: Settings, *, together: bool) -> None:
        self.together = together
        self.dispatcher = MemoryDispatcher(chosen, start=START)
        self.dispatcher.outbox.before = self._fail
        self.ids: list[Any] = []

    def _fail(self, message: Message) -> None:
        if message.recipient == "eve":
            raise PermanentFailure("no such number")

    def answers(self, call: Sequence[Any]) -> list[Any]:
        match call:
            case "submit", requests:
                return self._submitted([_draft(request) for request in _keyed_once(requests)])
            case "travel", length:
                self.dispatcher.travel(seconds=length.total_seconds())
                return [(sent.at, self._number(sent.message.id)) for sent in self.dispatcher.outbox]
            case name, chosen, *options:
                ids = [self.ids[number] for number in chosen if number < len(self.ids)]
                return self._changed(name, ids, *options) if ids else []
        raise AssertionError(call)

    def _submitted(self, requests: Sequence[Draft]) -> list[Any]:
        if self.together:
            results = list(self.dispatcher.submit_many(requests))
        else:
            results = [next(iter(self.dispatcher.submit_many([request]))) for request in requests]
        accepted = [result.id for result in results if isinstance(result, Message)]
        self.ids = [*dict.fromkeys([*self.ids, *accepted])]  # drafts with one key have one message
        return [
            self._said(result.error if isinstance(result, Rejection) else result)
            for result in results
        ]

    def _changed(self, name: str, ids: Sequence[Any], *options: Any) -> list[Any]:
        change: Any = {
            "move": self.dispatcher.reschedule_many,
            "cancel": self.dispatcher.cancel_many,
            "retry": self.dispatcher.retry_many,
        }[name]
        named = dict(zip(("later", "on_conflict"), options, strict=False))
        groups = [ids] if self.together else [[message_id] for message_id in ids]
        return [self._said(result) for group in groups for result in change(group, **named)]

    def _said(self, result: Message | DispatcherError) -> Any:
        if isinstance(result, Message):
            return self._number(result.id), result.status, result.send_at
        if isinstance(result, QuotaExceeded):
            conflicting = sorted(map(self._number, result.conflicting))
            return result.quota, result.scope, result.next_slot, conflicting
        if isinstance(result, QuietHours):
            return result.next_slot
        return type(result)

    def _number(self, message_id: Any) -> int:
        return self.ids.index(message_id)


def _keyed_once(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave each key to the first request that has it.

    A draft whose key one before it in its batch has is judged once that batch is decided.
    """
    keys = [request["key"] for request in requests]
    return [
        request | {"key": None if request["key"] in keys[:number] else request["key"]}
        for number, request in enumerate(requests)
    ]


def _draft(request: dict[str, Any]) -> Draft:
    return Draft(
        channel="sms",
        recipient=request["recipient"],
        body={},
        scopes={"tenant": request["tenant"]} if request["tenant"] else {},
        send_in=timedelta(hours=request["hours"], seconds=request["seconds"]),
        on_conflict=request["conflict"],
        idempotency_key=request["key"],
    )


def compare(quotas: str, shards: int, history: Sequence[Sequence[Any]]) -> None:
    chosen = Settings.load(
        quotas=quotas,
        shards=shards,
        scopes={"tenant": {"quotas": "4/hour"}},
        channels={
            "sms": {"transport": "memory", "quiet_hours": "22:00-08:00", "quotas": "5/minute"}
        },
    )
    sides = [Side(chosen, together=together) for together in (True, False)]
    try:
        for call in history:
            many, alone = (side.answers(call) for side in sides)
            assert many == alone, call
        for side in sides:
            assert side.dispatcher.verify_windows().equal
    finally:
        for side in sides:
            side.dispatcher.close()


def wish(hours: int, seconds: int = 0) -> dict[str, Any]:
    plain = {"recipient": "ada", "tenant": None, "conflict": "reject", "key": None}
    return plain | {"hours": hours, "seconds": seconds}


FULL_DAYS = [wish(24 * day + hour) for day in range(7) for hour in (4, 5)]
property_test = settings(deadline=None, database=None, max_examples=examples(90))


@pytest.mark.parametrize("shards", a_third_of([1, 4]))
@property_test
@given(quotas=st.sampled_from(QUOTAS), history=st.lists(calls, min_size=2, max_size=8))
@example("2/day in UTC", [("submit", [*FULL_DAYS, wish(1), wish(172), wish(173)])])
@example(
    "1/minute",
    [
        ("submit", [wish(1, 60 * number) for number in range(30)]),
        ("move", [*reversed(range(30))], timedelta(minutes=1), "reject"),
    ],
)
@example(
    "2/day in Asia/Tokyo",  # its days begin at 15:00 UTC
    [("submit", [wish(2, 1800), *FULL_DAYS[:-1]]), ("move", [0, 13], HOUR, "shift")],
)
def test_calls_for_many_come_to_what_calls_for_each_come_to(
    shards: int, quotas: str, history: Any
) -> None:
    compare(quotas, shards, history)


@property_test
@given(quotas=st.sampled_from(QUOTAS), history=st.lists(calls, min_size=2, max_size=8))
def test_so_they_do_where_a_search_takes_many_steps(quotas: str, history: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(3))
        compare(quotas, 4, history)
