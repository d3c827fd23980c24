"""What a transport answers or raises concerns its message alone, however odd it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Message, Outcome, Status, TemporaryFailure
from tests.support.doubles import Between, raising
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

GROUP = ("ada", "ben", "odd", "cleo", "dora")
SECOND = timedelta(seconds=1)
ABOUT_A_YEAR = timedelta(days=367)
ROOMY = {"quotas": "100/minute", "channels": {"memory": {"transport": "memory"}}}


class Unspeakable:
    """Cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnspeakableError(Exception):
    """An error that cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class WorkerDied(BaseException):
    """Ends a send like the death of its process."""


class OddTransport:
    """Answers every message in a sane way but that to ``odd``."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.seen: list[str] = []
        self._answer = answer

    def send(self, message: Message) -> str | None:
        self.seen.append(message.recipient)
        if message.recipient == "odd":
            answer: str | None = self._answer()
            return answer
        return "fine"


def at_odds(build: Build, answer: Callable[[], Any]) -> tuple[House, OddTransport, list[Message]]:
    """Return a house, its odd transport, and a group of five messages that are due."""
    house = build(clock=hour_ago(), **ROOMY)
    transport = OddTransport(answer)
    house.swap("transports", {"memory": transport})
    return house, transport, [house.submit(name) for name in GROUP]


def make_due(house: House, *messages: Message) -> None:
    house.change(messages, next_attempt_at=house.database_time() - timedelta(milliseconds=1))


def neighbours_are_sent(house: House, messages: list[Message]) -> None:
    for message in messages:
        if message.recipient != "odd":
            now = house.again(message)
            assert (now.status, now.attempt_count) == (Status.SENT, 1)
            [attempt] = house.dispatcher.attempts(message.id)
            assert (attempt.outcome, attempt.receipt) == (Outcome.SENT, "fine")


@pytest.mark.parametrize(
    "receipt",
    [
        {"id": 7},
        7,
        b"\xff",
        ["a", "b"],
        "x" * 3_000_000,
        "a\0b",
        "a\ud800b",
        "",
        Unspeakable(),
    ],
    ids=[
        "dict", "int", "bytes", "list", "huge", "NUL", "surrogate", "empty", "unspeakable",
    ],
)  # fmt: skip
def test_an_odd_receipt_is_a_receipt(build: Build, receipt: object) -> None:
    house, transport, messages = at_odds(build, lambda: receipt)
    assert house.deliver(*messages) == 5
    assert transport.seen == list(GROUP)
    neighbours_are_sent(house, messages)
    odd = messages[2]
    now = house.again(odd)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SENT, 1, None)
    [attempt] = house.dispatcher.attempts(odd.id)
    assert attempt.outcome is Outcome.SENT
    if attempt.receipt is not None:
        assert len(attempt.receipt) <= 10_000
        assert "\0" not in attempt.receipt
    assert house.deliver(*messages) == 0
    assert transport.seen == list(GROUP), "nobody is sent to twice"


class Busy(TemporaryFailure):
    """Says nothing to the class that it comes from."""

    def __init__(self, code: int) -> None:
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        Busy(503),
        ValueError("bad \udc80 name"),
        ValueError("bad \0 name"),
        UnspeakableError(),
        TemporaryFailure("bad \udc80\0 name"),
        TemporaryFailure("in ages", retry_after=timedelta(days=4_000_000)),
        TemporaryFailure("never", retry_after=timedelta.max),
        TemporaryFailure("soon", retry_after=30),  # type: ignore[arg-type]  # as users do
        TemporaryFailure("soon", retry_after="30"),  # type: ignore[arg-type]  # as users do
        TemporaryFailure("nan", retry_after=float("nan")),  # type: ignore[arg-type]  # as users do
        TemporaryFailure("yesterday", retry_after=timedelta(days=-1)),
        TemporaryFailure("before all time", retry_after=timedelta.min),
    ],
    ids=[
        "of its own", "surrogate", "NUL", "unspeakable", "both", "4,000,000 days", "longest",
        "int", "str", "NaN", "negative", "most negative",
    ],
)  # fmt: skip
def test_an_odd_error_is_one_failure(build: Build, error: Exception) -> None:
    house, transport, messages = at_odds(build, raising(error))
    before = house.database_time()
    assert house.deliver(*messages) == 4
    after = house.database_time()
    assert transport.seen == list(GROUP)
    neighbours_are_sent(house, messages)
    odd = messages[2]
    now = house.again(odd)
    assert (now.status, now.attempt_count) == (Status.SCHEDULED, 1)
    assert before - SECOND <= now.next_attempt_at <= after + ABOUT_A_YEAR
    [attempt] = house.dispatcher.attempts(odd.id)
    is_temporary = isinstance(error, TemporaryFailure)
    assert attempt.outcome is (Outcome.TEMPORARY if is_temporary else Outcome.UNKNOWN)
    assert attempt.error == now.last_error
    assert now.last_error is not None
    assert type(error).__name__ in now.last_error
    assert "\0" not in now.last_error

    make_due(house, odd)
    assert house.deliver(*messages) == 1
    assert transport.seen == [*GROUP, "odd"]
    assert house.again(odd).status is Status.SENT


def test_an_odd_error_of_the_last_try_ends_its_message_alone(build: Build) -> None:
    house, _, messages = at_odds(build, raising(UnspeakableError()))
    odd = messages[2]
    house.change([odd], max_attempts=1)
    assert house.deliver(*messages) == 4
    neighbours_are_sent(house, messages)
    assert house.again(odd).status is Status.FAILED


def was_put_back(house: House, message: Message) -> None:
    now = house.again(message)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 0, None)
    assert house.dispatcher.attempts(message.id) == []
    assert house.permits(message.scope) == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_bug_before_the_sends_puts_the_whole_group_back(build: Build, when: str) -> None:
    house, transport, messages = at_odds(build, lambda: "fine")
    bug = {"acquire": raising(RuntimeError("a bug"))}
    house.swap("permits", Between(house.parts.permits, **{when: bug}))
    with suppress(RuntimeError):
        house.deliver(*messages)
    assert transport.seen == []
    for message in messages:
        was_put_back(house, message)
    make_due(house, *messages)
    assert house.deliver(*messages) == 5


@pytest.mark.parametrize("end", [WorkerDied, SystemExit, KeyboardInterrupt])
def test_an_exit_during_a_send_leaves_the_messages_after_it_unchanged(
    build: Build, end: type[BaseException]
) -> None:
    house, transport, messages = at_odds(build, raising(end()))
    with pytest.raises(end):
        house.deliver(*messages)
    assert transport.seen == list(GROUP[:3])
    for message in messages[:2]:
        assert house.again(message).status is Status.SENT
    now = house.again(messages[2])
    assert (now.status, now.attempt_count) == (Status.SENDING, 1), "its outcome is unknown"
    assert len(house.permits("odd")) == 1
    for message in messages[3:]:
        was_put_back(house, message)
    make_due(house, *messages[3:])
    assert house.deliver(*messages) == 2
    assert transport.seen == list(GROUP)
