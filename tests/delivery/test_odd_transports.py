"""What a transport answers or raises concerns its message alone, however odd it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import Message, Status
from tests.support.doubles import WorkerDied, raising
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

GROUP = ("ada", "ben", "odd", "cleo", "dora")
ROOMY = {"quotas": "100/minute", "channels": {"memory": {"transport": "memory"}}}


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


def was_put_back(house: House, message: Message) -> None:
    now = house.again(message)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 0, None)
    assert house.dispatcher.attempts(message.id) == []
    assert house.permits(message.scope) == {}


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
    house.make_due(*messages[3:])
    assert house.deliver(*messages) == 2
    assert transport.seen == list(GROUP)
