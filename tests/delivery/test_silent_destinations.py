"""A receiver that never answers keeps nobody waiting but those who wait for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Message, Outcome, Status
from dispatcher.times.clock import SystemClock
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.http_receiver import Receiver, receiving
from tests.support.waiting import wait_until

LATE = 60.0
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
Make = Callable[..., House]


class Silent:
    """A host that takes connections and says nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.2", 0), backlog=1_000)
        self.url = f"http://127.0.0.2:{self.port}/hook"

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Break every connection."""
        self._socket.close()


@pytest.fixture
def good() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


@pytest.fixture
def make(build: Build, good: Receiver, silent: Silent) -> Make:
    def made(timeout: float, **channel: Any) -> House:
        options: dict[str, Any] = {
            "http": True, "allow": ["127.0.0.0/8"], "ports": [good.port, silent.port],
        }  # fmt: skip
        return build(
            clock=SystemClock(),
            in_order=False,
            quotas="1000/minute",
            transport_timeout=timeout,
            claim_ttl=timeout + 20,
            redelivery_timeout=600,
            channels={"hook": {"transport": "webhook", "options": options} | channel},
        )

    return made


def to(house: House, url: str, many: int) -> list[Message]:
    return [house.submit(channel="hook", recipient=url) for _ in range(many)]


def delivering(house: House, *groups: Sequence[Message]) -> list[threading.Thread]:
    """Let threads deliver these groups as those of a worker do."""
    threads = [
        threading.Thread(
            target=house.parts.group_queue.deliver, args=([each.id for each in group], "hook")
        )
        for group in groups
    ]
    for each in threads:
        each.start()
    return threads


@on_postgresql
def test_who_answers_is_not_kept_waiting_by_who_does_not(
    make: Make, good: Receiver, silent: Silent
) -> None:
    """64 messages to a host that never answers, due before; the timeout is far away."""
    house = make(LATE)
    bad = to(house, silent.url, 64)
    threads = delivering(house, bad[:50], bad[50:])
    wait_until(lambda: len(house.attempt_rows()) == len(bad), LATE)
    others = to(house, good.url, 20)
    threads += delivering(house, others)
    wait_until(lambda: all(house.again(each).status is Status.SENT for each in others), LATE)
    assert len(good.received) == len(others)
    for each in bad:
        [attempt] = house.dispatcher.attempts(each.id)
        assert attempt.finished_at is None, "no send to the silent one has ended by then"
    house.parts.group_queue.stop()
    silent.close()
    for thread in threads:
        thread.join(LATE)
    assert house.parts.group_queue.finish(LATE)
    tried = [house.again(each).attempt_count for each in bad]
    senders = house.settings.channels["hook"].senders
    assert sum(tried) == senders - senders // 4, "the others were put back"


@on_postgresql
def test_after_timeouts_in_a_row_one_sender_at_a_time_tries_until_it_answers(
    make: Make, good: Receiver, silent: Silent
) -> None:
    house = make(0.3)
    first = to(house, silent.url, 3)
    house.deliver(*first)
    for each in first:
        [attempt] = house.dispatcher.attempts(each.id)
        assert attempt.outcome in {Outcome.UNKNOWN, Outcome.TEMPORARY}
    more, others = to(house, silent.url, 40), to(house, good.url, 10)
    assert house.deliver(*more, *others) == len(others)
    assert len(good.received) == len(others)
    now = [house.again(each) for each in more]
    assert sorted(each.attempt_count for each in now) == [0] * 39 + [1]
    back = sorted(each.next_attempt_at for each in now if each.attempt_count == 0)
    assert {each.status for each in now} == {Status.SCHEDULED}
    assert back[-1] - back[0] > timedelta(seconds=10), "they come back one after the other"
    assert len(house.permits(silent.url)) == 3 + 1, "what was not sent has no permit"


@on_postgresql
def test_each_message_for_who_never_answers_is_tried_and_fails_in_the_end(
    make: Make, silent: Silent
) -> None:
    """More than can be tried before the longest wait is over: none is passed over for ever."""
    house = make(0.2, max_attempts=2, backoff_base=0.2, backoff_longest=0.5)
    messages = to(house, silent.url, 12)

    def have_failed() -> bool:
        waiting = [each for each in messages if house.again(each).status is Status.SCHEDULED]
        house.deliver(*waiting)
        return not waiting

    wait_until(have_failed, 2 * LATE)
    for each in messages:
        assert house.again(each).status is Status.FAILED
        assert len(house.dispatcher.attempts(each.id)) == 2
