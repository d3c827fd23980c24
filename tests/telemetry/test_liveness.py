"""Signs of life: who is at work, since when not, and when each duty was last done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.keys import LooseKeys, all_of
from dispatcher.telemetry.liveness import LOST_AFTER, Kind, Pulse, Signs
from dispatcher.times.clock import SystemClock
from dispatcher.times.zones import database
from tests.support.clock import MovableClock
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


@pytest.fixture
def signs(redis_client: redis.Redis) -> Signs:
    return Signs(redis_client, namespace="signs")


@pytest.fixture
def pulse(signs: Signs) -> Iterator[Pulse]:
    """Give the pulse of this process."""
    pulse = Pulse(signs, SystemClock())
    yield pulse
    pulse.stop()


def test_a_process_is_alive_for_a_while_after_its_last_sign(signs: Signs) -> None:
    signs.note(Kind.WORKER, {"here": 0 * SECOND, "there": LOST_AFTER + SECOND})
    here, there = signs.read()[Kind.WORKER]
    assert (here.name, here.is_alive) == ("here", True)
    assert (there.name, there.is_alive) == ("there", False)
    assert there.age >= LOST_AFTER
    assert signs.read()[Kind.BEAT] == ()


def test_the_latest_sign_holds_and_very_old_ones_are_forgotten(signs: Signs) -> None:
    clock = MovableClock()
    pulse = Pulse(signs, clock)
    pulse._done["catch_up"] = clock.monotonic() - 60
    pulse._say()
    signs.note(Kind.DUTY, {"rescue": 5 * SECOND})
    signs.note(Kind.DUTY, {"rescue": 50 * SECOND, "prune": timedelta(days=2)})
    catch_up, rescue = signs.read()[Kind.DUTY]
    assert (catch_up.name, rescue.name) == ("catch_up", "rescue")
    assert 60 * SECOND <= catch_up.age < 90 * SECOND
    assert 5 * SECOND <= rescue.age < 40 * SECOND


def test_a_process_says_that_it_lives_what_it_did_and_that_it_ended(
    signs: Signs, pulse: Pulse
) -> None:
    pulse.start(Kind.WORKER, "celery@here")
    pulse.done("rescue")
    wait_until(lambda: signs.read()[Kind.WORKER])
    [worker] = signs.read()[Kind.WORKER]
    assert worker.name == f"celery@here {os.getpid()}"
    assert worker.is_alive
    wait_until(lambda: signs.read()[Kind.ZONES])
    assert [each.name for each in signs.read()[Kind.ZONES]] == [database().version]
    pulse.stop()
    found = signs.read()
    assert found[Kind.WORKER] == ()
    assert [each.name for each in found[Kind.DUTY]] == ["rescue"]


def test_nothing_waits_for_a_redis_that_is_away() -> None:
    client = redis.Redis(port=1, retry=Retry(NoBackoff(), 0))
    away = Signs(client, namespace="signs")
    pulse = Pulse(away, SystemClock())
    pulse.start(Kind.BEAT, "beat@here")
    pulse.done("rescue")
    pulse.stop()
    with pytest.raises(ReservationsUnavailable):
        away.read()


def test_a_rebuild_leaves_signs_alone() -> None:
    glob = all_of("signs").rstrip("*")
    assert not LooseKeys("signs").signs(Kind.WORKER).startswith(glob)
