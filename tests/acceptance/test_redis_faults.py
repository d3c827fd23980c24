"""Redis forgets everything, while submits and sends go on."""

from __future__ import annotations

import pytest

from dispatcher import Message
from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from tests.support.environment import Environment, Maker
from tests.support.load import Load, flow
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


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


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_after_flushall_submits_are_refused_until_the_windows_are_rebuilt(
    environment: Maker, own_redis: RedisServer
) -> None:
    running = environment()
    with Load(running.settings, recipients=40) as load, own_redis.client() as client:
        ours: list[Message] = []
        flow(running, load)
        for _ in range(3):
            # The second and third hit while what waited for the first is being sent.
            wait_for_send(running)
            client.flushall()
            # The rebuild may be over before the load submits again: the test submits by itself.
            assert not are_open(running, ours)
            wait_until(lambda: are_open(running, ours))
        flow(running, load)
    running.wait_until_ended()
    assert load.failures == []
    running.check([*load.accepted, *ours])
