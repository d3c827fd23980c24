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
from rounds import folder, measure, report

from dispatcher.bootstrap import Parts
from dispatcher.embedded import embedded
from dispatcher.message import new_id
from dispatcher.sendtime import to_ms

CALLS = 2_000


def main() -> None:
    with folder() as path, embedded(path) as settings:
        parts = Parts(settings)
        start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        asked = to_ms(start)
        flat = [part for quota in settings.quotas for part in (quota.count, quota.length_ms)]
        empty = parts.redis.register_script("return {redis.call('EXISTS', KEYS[3]), 1, ARGV[1]}")
        bare = parts.redis.register_script("return 1")
        keys = parts.fence.keys[0]
        names = [keys.window("+4915112345678"), keys.pending, keys.epoch]
        arguments: list[str | int | bytes] = [
            new_id().bytes,
            asked,
            asked,
            asked,
            "",
            "",
            "",
            *flat,
        ]
        turns = count()

        def ours() -> None:
            turn = next(turns)
            parts.windows.reserve(new_id(), scope=f"new-{turn}", send_at=start)

        def ours_filled() -> None:
            turn = next(turns)
            at = start + timedelta(hours=3 * (turn // 500))
            parts.windows.reserve(new_id(), scope=f"old-{turn % 500}", send_at=at)

        storage = RedisStorage(settings.redis_url.replace("unix://", "redis+unix://"))
        three = [parse("1/minute"), parse("5/hour"), parse("10/day")]
        fixed, moving = FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)

        def peer(limiter: FixedWindowRateLimiter | MovingWindowRateLimiter) -> None:
            key = f"peer-{next(turns)}"
            for limit in three:
                limiter.hit(limit, key)

        figures = measure(
            {
                "empty script": lambda: bare(keys=names, args=arguments),
                "empty script that checks the epoch": lambda: empty(keys=names, args=arguments),
                "reserve, new scope": ours,
                "reserve, scope with some bookings": ours_filled,
                "limits, fixed window × 3": lambda: peer(fixed),
                "limits, moving window × 3": lambda: peer(moving),
            },
            calls=CALLS,
        )
        report("Reservation: three quotas judged and booked", figures, floor="empty script")
        parts.close()


if __name__ == "__main__":
    main()
