"""Redis forgets all; the broker loses tasks, is away or freezes: the store is the promise."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher import Dispatcher, Message
from dispatcher.celery.configuration import create_app
from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from tests.support.environment import CHANNEL, Environment, Maker, broker_on, frozen
from tests.support.house_fixtures import on_sqlite
from tests.support.load import Load, flow
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

MOST_SECONDS = 20.0
"""A submit waits a second for a broker that is away, and else for ever; the rest is for a slow
machine."""


@pytest.mark.long
@on_sqlite
def test_a_submit_waits_a_second_at_most_for_a_broker_that_is_away_or_frozen(
    environment: Maker, own_broker: RedisServer
) -> None:
    running = environment(broker_url=broker_on(own_broker.url, db=0))
    accepted = [submit(running.dispatcher, "warm", 0)]

    with Dispatcher(running.settings) as cold, frozen(own_broker.pid):
        accepted += submit_in_time(running.dispatcher, "frozen-warm")
        accepted += submit_in_time(cold, "frozen-cold")
    running.wait_until_ended()

    own_broker.kill()
    with Dispatcher(running.settings) as cold:
        accepted += submit_in_time(running.dispatcher, "refused-warm")
        accepted += submit_in_time(cold, "refused-cold")
    own_broker.start()
    running.wait_until_ended()
    running.check(accepted)


@pytest.mark.long
@on_sqlite
def test_a_worker_comes_back_to_its_broker_and_hands_over_again_what_it_held(
    environment: Maker, own_broker: RedisServer
) -> None:
    """The broker has lost the tasks, too. Without a word from the worker they would wait."""
    running = environment(
        broker_url=broker_on(own_broker.url, db=0), horizon=9, enqueue_grace=60, claim_ttl=10
    )
    start = datetime.now(UTC) + timedelta(seconds=8)
    accepted = [
        running.submit(f"held-{number}", send_at=start + number * timedelta(seconds=0.1))
        for number in range(10)
    ]

    def are_held() -> bool:
        """Whether the worker has begun to wait with each task; the broker's index tells sooner."""
        replies = app.control.inspect(timeout=2.0, limit=1).scheduled() or {}
        waiting = sum(len(reply) for reply in replies.values())
        return waiting + len({line["id"] for line in running.ledger()}) >= len(accepted)

    with create_app(running.settings, submitting=True) as app:
        wait_until(are_held)
    with own_broker.client() as tasks:
        tasks.flushdb()
    own_broker.kill()
    own_broker.start()
    running.wait_until_ended()
    assert running.restarts == 0, "the worker has lived through it"
    running.check(accepted)


def submit(dispatcher: Dispatcher, name: str, number: int) -> Message:
    """Submit for a time inside the horizon, so that the broker is asked."""
    return dispatcher.submit(
        channel=CHANNEL, recipient=f"{name}-{number}", body={}, send_in=timedelta(seconds=1)
    )


def submit_in_time(dispatcher: Dispatcher, name: str) -> list[Message]:
    accepted = []
    for number in range(2):
        began = time.monotonic()
        accepted.append(submit(dispatcher, name, number))
        assert time.monotonic() - began < MOST_SECONDS
    return accepted


def wait_for_send(running: Environment) -> None:
    before = len(running.ledger())
    wait_until(lambda: len(running.ledger()) > before)


def are_open(running: Environment, accepted: list[Message]) -> bool:
    """Submit once; return whether the windows decide, by yes or no. Add what they accept."""
    try:
        message = running.submit("ada")
    except ReservationsUnavailable:
        return False
    except QuotaExceeded:
        return True
    accepted.append(message)
    return True


@on_sqlite
def test_after_flushall_submits_are_refused_until_the_windows_are_rebuilt(
    environment: Maker, own_redis: RedisServer
) -> None:
    running = environment()
    with Load(running.settings) as load, own_redis.client() as client:
        ours: list[Message] = []
        flow(running, load)
        for _ in range(2):
            # The second hits while what waited for the first is being sent.
            wait_for_send(running)
            client.flushall()
            # The rebuild may be over before the load submits again: the test submits by itself.
            assert not are_open(running, ours)
            wait_until(lambda: are_open(running, ours))
        flow(running, load)
    running.wait_until_ended()
    assert load.failures == []
    running.check([*load.accepted, *ours])
