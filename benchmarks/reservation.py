"""Measure what judging and booking one time against three quotas costs.

The floor is an empty script with the same keys and arguments, called the same way. The peer is
``limits`` with three hits, which judges the present only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

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
from dispatcher.reservation import Terms
from dispatcher.settings import Settings

CALLS = 2_000


def main() -> None:
    for log in ("no", "yes"):
        with folder() as path, embedded(path) as settings:
            compare(settings, log)


def compare(settings: Settings, log: str) -> None:
    """Measure on a Redis with or without its append-only log, which only writes pay for."""
    parts = App(settings)
    parts.redis.config_set("appendonly", log)
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    bare = parts.redis.register_script("return 1")
    script = parts.redis.register_script(source("reservation/reserve"))
    first, terms = new_id(), Terms.own("recorded")
    (*names, window), words = call_of(
        "reservation/reserve", lambda: parts.windows.reserve(first, terms=terms, send_at=start)
    )
    turns = count()

    def call(which: Script) -> None:
        message_id = new_id().bytes
        args = [message_id if word == first.bytes else word for word in words]
        which(keys=[*names, f"{window}-{next(turns)}"], args=args)

    def ours() -> None:
        turn = next(turns)
        parts.windows.reserve(new_id(), terms=Terms.own(f"new-{turn}"), send_at=start)

    def ours_filled() -> None:
        turn = next(turns)
        at = start + timedelta(hours=3 * (turn // 500))
        parts.windows.reserve(new_id(), terms=Terms.own(f"old-{turn % 500}"), send_at=at)

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
            "Windows.reserve, new scope": ours,
            "Windows.reserve, scope with some bookings": ours_filled,
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
