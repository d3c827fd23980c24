"""Real processes that book in one scope at the same time."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from dispatcher.errors import QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import Terms
from dispatcher.times.send_time import from_ms
from tests.support import model
from tests.support.processes import in_processes
from tests.support.reserving import pending, reserving
from tests.support.servers import RedisServer

BASE = 4_102_444_800_000  # 2100-01-01, ms
QUOTAS = (Quota(1, 50), Quota(4, 400), Quota(12, 2_000))
SPAN = 20_000
TRIES = 250
PROCESSES = 8


def hammer(gate: Any, seed: int, url: str) -> tuple[int, int, int]:
    """Book, shift and cancel at random; return how many were booked, refused and cancelled."""
    roll = random.Random(seed)  # noqa: S311 - not for secrets
    booked = refused = cancelled = 0
    with reserving(url, QUOTAS) as real:
        gate.wait(60)
        for _ in range(TRIES):
            asked = from_ms(BASE + roll.randrange(SPAN))
            shift = asked + timedelta(milliseconds=300) if roll.random() < 0.3 else None
            try:
                booking = real.windows.reserve(
                    new_id(), terms=Terms.plain("crowd"), send_at=asked, latest=shift
                )
            except QuotaExceeded:
                refused += 1
                continue
            booked += 1
            if roll.random() < 0.2:
                real.windows.release(booking.message_id, Terms.plain("crowd"))
                cancelled += 1
    return booked, refused, cancelled


def test_eight_processes_on_one_scope_break_no_quota(redis_server: RedisServer) -> None:
    with reserving(redis_server.url, QUOTAS) as real:
        real.open()
        counts = in_processes(PROCESSES, hammer, redis_server.url)
        booked, refused, cancelled = (sum(column) for column in zip(*counts, strict=True))
        members = real.members("crowd")
        assert len(members) == booked - cancelled
        assert pending(real.client, real.keys("crowd")) == set(members)
        for quota in QUOTAS:
            assert not model.is_broken(members.values(), (quota.count, quota.length_ms))
        assert booked > 0
        assert refused > 0
