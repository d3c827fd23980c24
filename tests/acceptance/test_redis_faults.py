"""Redis dies, forgets its last words or forgets everything, while submits and sends go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dispatcher import Message
from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from tests.support.environment import Environment, Maker
from tests.support.load import Load, flow
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

FORGOTTEN_BYTES = 30_000


def wait_for_refusal(load: Load, before: int) -> None:
    wait_until(lambda: load.unavailable() > before)


def wait_for_send(running: Environment) -> None:
    before = len(running.ledger())
    wait_until(lambda: len(running.ledger()) > before)


def wait_for_recovery(load: Load, since: float) -> None:
    wait_until(lambda: load.accepted_since(since))


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


def forget_the_end(folder: Path) -> None:
    """Cut the log of a Redis that is down, as a machine that lost power does."""
    logs = [path for path in folder.rglob("*.aof") if ".base." not in path.name]
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    with newest.open("r+b") as log:
        log.truncate(max(0, newest.stat().st_size - FORGOTTEN_BYTES))


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_killed_redis_comes_back_and_no_quota_or_limit_is_exceeded(
    environment: Maker, own_redis: RedisServer
) -> None:
    running = environment()
    with Load(running.settings, recipients=40) as load:
        flow(running, load)
        own_redis.kill()
        wait_for_refusal(load, load.unavailable())
        own_redis.start()
        wait_for_recovery(load, time.monotonic())
        flow(running, load)
        own_redis.kill()
        forget_the_end(own_redis.folder)
        own_redis.start()
        wait_for_recovery(load, time.monotonic())
        flow(running, load)
    running.wait_until_ended()
    assert load.failures == []
    running.check(load.accepted)


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
