"""Work out what a load needs, from the cost of one message. Prints tables of `docs/operating.md`.

Nothing is measured here: the costs are those that `costs.py` printed, and the rest is arithmetic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

DAY = 86_400
BUSY = 0.6
"""How much of a core a process may use on average: the rest is for peaks."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds for 1,000 messages, and bytes for one."""

    submit: float = 0.22
    submit_redis: float = 0.06
    submit_sql: float = 0.14
    deliver: float = 0.14
    deliver_redis: float = 0.04
    deliver_sql: float = 0.06
    reservation_bytes: float = 145
    live_bytes: float = 301
    ended_bytes: float = 382
    wal_bytes: float = 2_350


COSTS = Costs()
RATES = (100, 1_000, 10_000)
LEAD_DAYS = 3
"""How long a message waits on average in the table."""
RETENTION_DAYS = 30
SCHEDULED, SCHEDULED_LEAD_DAYS = 1_000_000_000, 7
HOURS = (1, 1, 1, 1, 1, 2, 4, 8, 12, 10, 8, 7, 7, 6, 6, 6, 7, 8, 8, 6, 4, 3, 2, 1)
"""Share of each hour of the day in what is due."""
ON_THE_MINUTE = 0.3
"""Share of the messages that are due in the first second of a minute."""
LATENESS_SECONDS = 5.0


def cores(seconds_per_1_000: float, rate: float) -> float:
    """Return the cores that a rate of messages a second needs."""
    return rate * seconds_per_1_000 / 1_000 / BUSY


def amount(number: float, unit: str = "") -> str:
    """Return a number with three digits and a prefix of the SI."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if number < 1_000:
            digits = 0 if number >= 100 or (not prefix and number == int(number)) else 1
            return f"{number:.{digits}f} {prefix}{unit}".strip()
        number /= 1_000
    raise ValueError("too large")


def processes(seconds_per_1_000: float, rate: float) -> int:
    """Return how many processes of one core each a rate needs."""
    return max(1, math.ceil(cores(seconds_per_1_000, rate)))


def table(costs: Costs) -> Iterator[str]:
    """Yield the lines of the table of messages a second."""
    yield ("| messages/s | submitting processes | workers | Redis: cores | Redis: memory "
           "| PostgreSQL: cores | live rows | rows kept | WAL a day |")  # fmt: skip
    yield "|---|---|---|---|---|---|---|---|---|"
    for rate in RATES:
        live = rate * DAY * LEAD_DAYS
        # The quotas of a day, and the day more for which reservations are kept.
        counted = live + rate * DAY * 2
        kept = rate * DAY * RETENTION_DAYS
        yield " | ".join([
            f"| {rate:,}",
            f"{processes(costs.submit, rate)}",
            f"{processes(costs.deliver, rate)}",
            f"{cores(costs.submit_redis + costs.deliver_redis, rate):.2f}",
            amount(counted * costs.reservation_bytes, "B"),
            f"{cores(costs.submit_sql + costs.deliver_sql, rate):.2f}",
            f"{amount(live)}, {amount(live * costs.live_bytes, 'B')}",
            f"{amount(kept)}, {amount(kept * costs.ended_bytes, 'B')}",
            amount(rate * DAY * costs.wal_bytes, "B") + " |",
        ])  # fmt: skip


def arrivals(messages: float, roll: random.Random) -> Iterator[float]:
    """Yield how many messages are due in each second of a day."""
    for hour in range(24):
        in_hour = messages * HOURS[hour] / sum(HOURS)
        for _ in range(60):
            minute = in_hour / 60 * roll.uniform(0.8, 1.2)
            yield minute * (ON_THE_MINUTE + (1 - ON_THE_MINUTE) / 60)
            for _ in range(59):
                yield minute * (1 - ON_THE_MINUTE) / 60


def lateness(due: list[float], rate: float) -> tuple[float, float]:
    """Return how late the messages go out that ``rate`` a second can be sent of: p99 and longest.

    In seconds. What cannot be sent in a second waits in line.
    """
    waiting = 0.0
    seen = []
    for messages in due:
        waiting += messages
        seen.append((waiting / rate, messages))
        waiting = max(0.0, waiting - rate)
    left = sum(due) / 100
    longest = max(seen)[0]
    for seconds, messages in sorted(seen, reverse=True):
        left -= messages
        if left <= 0:
            return seconds, longest
    return longest, longest


def billion(costs: Costs) -> Iterator[str]:
    """Yield what a billion scheduled messages need, by the peaks of a simulated day."""
    a_day = SCHEDULED / SCHEDULED_LEAD_DAYS
    due = list(arrivals(a_day, random.Random(1)))
    workers = 1
    while lateness(due, workers * 1_000 / costs.deliver * BUSY)[0] > LATENESS_SECONDS:
        workers += 1
    p99, longest = lateness(due, workers * 1_000 / costs.deliver * BUSY)
    hour = max(sum(due[start : start + 3_600]) for start in range(0, DAY, 3_600)) / 3_600
    mean = a_day / DAY
    yield (
        f"- sends a day {amount(a_day)}; mean {mean:,.0f}/s, busiest hour {hour:,.0f}/s, "
        f"busiest second {max(due):,.0f}/s"
    )
    yield (
        f"- workers of one core: {workers}; lateness p99 {p99:.1f} s, longest {longest:.1f} s; "
        f"submitting processes: {processes(costs.submit, mean)}"
    )
    redis_cores = cores(costs.submit_redis, mean) + cores(costs.deliver_redis, hour)
    memory = (SCHEDULED + 2 * a_day) * costs.reservation_bytes
    yield f"- Redis in the busiest hour: {redis_cores:.1f} cores, {amount(memory, 'B')}"
    sql = cores(costs.submit_sql, mean) + cores(costs.deliver_sql, hour)
    kept = a_day * RETENTION_DAYS
    yield (
        f"- PostgreSQL in the busiest hour: {sql:.1f} cores; live rows "
        f"{amount(SCHEDULED * costs.live_bytes, 'B')}, {amount(kept)} rows kept "
        f"{amount(kept * costs.ended_bytes, 'B')}, WAL a day {amount(a_day * costs.wal_bytes, 'B')}"
    )


if __name__ == "__main__":
    print("\n".join([*table(COSTS), "", *billion(COSTS)]))
