"""Many threads and processes on one log: exact counts, and no window ever too full."""

from __future__ import annotations

import itertools
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.limiters import PermitAnswer
from tests.support.doubles import at_once
from tests.support.model import is_broken
from tests.support.permits import Logs, logs_on
from tests.support.processes import in_processes
from tests.support.servers import RedisServer
from tests.support.soak import examples

THREADS = 50
PROCESSES = 6


def test_threads_on_one_log_get_exactly_the_limit(redis_server: RedisServer) -> None:
    with logs_on(redis_server, "20/hour", "100/day") as logs:
        ids = [n.to_bytes(4, "big") for n in range(THREADS * 4)]
        groups = [ids[n::THREADS] for n in range(THREADS)]
        answers = at_once([partial(logs.acquire, *group) for group in groups])
        decisions: list[PermitAnswer] = []
        for answer in answers:
            assert isinstance(answer, list)
            decisions += answer
        assert sum(each.allowed for each in decisions) == 20
        assert len(logs.members()) == 20


def _hammer(gate: Any, number: int, path: str) -> tuple[list[int], int]:
    """Take and settle permits in a tight loop; return the hand-overs by the server's clock."""
    from dispatcher.quota import Limit  # noqa: PLC0415 - runs in another process

    handed_over: list[int] = []
    refused = 0
    with Logs(path, Limit(5, 100), Limit(20, 1_000)) as logs:
        gate.wait(60)
        end = logs.now() + 1_200
        for turn in itertools.count():
            permit = bytes([number]) + turn.to_bytes(4, "big")
            if logs.now() > end:
                return handed_over, refused
            if logs.acquire(permit, hold=timedelta(seconds=5))[0].allowed:
                at = logs.now()
                handed_over.append(at)
                logs.settle(permit, since_ms=logs.now() - at)
            else:
                refused += 1
    raise AssertionError("unreachable")


def test_processes_never_hand_over_more_than_the_limit_in_any_period(
    redis_server: RedisServer,
) -> None:
    with logs_on(redis_server, "5/second") as logs:
        answers = in_processes(PROCESSES, _hammer, str(redis_server.socket))
        assert logs.client.exists("log")
    times = sorted(at for handed_over, _ in answers for at in handed_over)
    assert len(times) >= 20, "the limits are not merely closed"
    assert sum(refused for _, refused in answers) > 0
    assert not is_broken(times, (5, 100))
    assert not is_broken(times, (20, 1_000))


STEP = 10_000
ages = st.lists(st.integers(0, 60).map(lambda n: n * STEP), max_size=12)
limits = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 50).map(lambda n: n * STEP + STEP // 2)),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def shared(redis_session: RedisServer) -> RedisServer:
    """Give the Redis of the run to examples that each use a log of their own."""
    with redis_session.client() as client:
        client.flushall()
    return redis_session


@settings(max_examples=examples(80), deadline=None)
@given(ages=ages, limits=limits, wanted=st.integers(1, 8))
def test_decisions_are_those_of_a_plain_count(
    shared: RedisServer, ages: list[int], limits: list[tuple[int, int]], wanted: int
) -> None:
    written = [f"{count}/{length // 1_000} second" for count, length in limits]
    with logs_on(shared, *written) as logs:
        logs.client.delete("log")
        logs.put({bytes([n]): age for n, age in enumerate(ages)})
        answers = logs.acquire(*(bytes([100 + n]) for n in range(wanted)), hold=timedelta(0))
        # No age lies within 5 s of a length, so the ms that pass meanwhile decide nothing.
        taken, refused = list(ages), 0
        for answer in answers:
            left = [count - sum(age < length for age in taken) for count, length in limits]
            assert answer.allowed == (min(left) > 0)
            assert answer.remaining == max(0, min(left) - answer.allowed)
            if answer.allowed:
                taken.append(0)
                assert answer.retry_after == timedelta(0)
            else:
                waits = [
                    length * (1 + refused // count) - sorted(taken)[count - 1 - refused % count]
                    for (count, length), each in zip(limits, left, strict=True)
                    if each <= 0
                ]
                refused += 1
                error = timedelta(milliseconds=max(waits)) - answer.retry_after
                assert timedelta(0) <= error < timedelta(seconds=5)
