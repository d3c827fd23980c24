"""Measure what judging and booking one time against three quotas costs.

The floor is an empty script with the same keys and arguments, called the same way. The peer is
``limits`` with three hits, which judges the present only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

from limits import parse
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from recorded import call_of
from redis.commands.core import Script
from rounds import folder, measure, report

from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import new_id
from dispatcher.redis.scripts import source
from dispatcher.reservation.booking import BookingRequest, Slot, Terms
from dispatcher.scope import own_scope
from dispatcher.settings import Settings
from dispatcher.times.send_time import to_ms

CALLS = 2_000
HOUR_MS = 3_600_000


def main() -> None:
    for log in ("no", "yes"):
        with folder() as path, embedded(path) as settings:
            compare(settings, log)


def compare(settings: Settings, log: str) -> None:
    """Measure on a Redis with or without its append-only log, which only writes pay for."""
    parts = App(settings)
    windows = parts.windows
    parts.redis.config_set("appendonly", log)
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    bare = parts.redis.register_script("return 1")
    script = parts.redis.register_script(source("reservation/reserve"))
    first, terms = new_id(), Terms((own_scope("recorded"),))
    start_ms = to_ms(start)

    def reserve(message_id: UUID, scope: Terms, at_ms: int) -> None:
        """Reserve one message, as a submit does."""
        [booked] = windows.book([BookingRequest(message_id, scope, at_ms, at_ms)])
        assert isinstance(booked, Slot)
        assert booked.at_ms == at_ms

    (*names, window), words = call_of(
        "reservation/reserve", lambda: reserve(first, terms, start_ms)
    )
    turns = count()

    def call(which: Script) -> None:
        message_id = new_id().bytes
        args = [message_id if word == first.bytes else word for word in words]
        which(keys=[*names, f"{window}-{next(turns)}"], args=args)

    def ours() -> None:
        reserve(new_id(), Terms((own_scope(f"new-{next(turns)}"),)), start_ms)

    def ours_filled() -> None:
        turn = next(turns)
        at_ms = start_ms + 3 * HOUR_MS * (turn // 500)
        reserve(new_id(), Terms((own_scope(f"old-{turn % 500}"),)), at_ms)

    storage = RedisStorage(settings.redis_url.replace("unix://", "redis+unix://"))
    three = [parse("1/minute"), parse("5/hour"), parse("10/day")]
    fixed, moving = FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)

    def peer(limiter: FixedWindowRateLimiter | MovingWindowRateLimiter) -> None:
        key = f"peer-{next(turns)}"
        for limit in three:
            limiter.hit(limit, key)

    figures = measure(
        {
            "empty script": lambda: call(bare),
            "reserve.lua, called the same way": lambda: call(script),
            "a reservation, new scope": ours,
            "a reservation, scope with some bookings": ours_filled,
            "limits, fixed window × 3": lambda: peer(fixed),
            "limits, moving window × 3": lambda: peer(moving),
        },
        calls=CALLS,
    )
    title = f"Reservation: three quotas judged and booked (appendonly {log})"
    report(title, figures, floor="empty script")
    parts.close()


if __name__ == "__main__":
    main()
