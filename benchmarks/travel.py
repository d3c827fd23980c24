"""Time travel: 10,000 messages of 30 days, submitted and sent in memory.

Prints the seconds of the submits and of the journey, of the clock and of the processor; the drafts
are made before.
"""

from __future__ import annotations

import random
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher import Settings
from dispatcher.testing import MemoryDispatcher

MESSAGES, DAYS, RECIPIENTS, ROUNDS = 10_000, 30, 1_000, 5
START = datetime(2026, 11, 23, 12, tzinfo=UTC)


def settings() -> Settings:
    return Settings.load(
        quotas="1/minute, 5/hour, 10/day",
        channels={
            "sms": {
                "transport": "memory",
                "quiet_hours": "21:00-08:00",
                "limits": ["100/second"],
            }
        },
    )


def asked() -> list[dict[str, Any]]:
    luck = random.Random(1)
    seconds = DAYS * 86_400
    return [
        {
            "channel": "sms",
            "recipient": f"recipient {luck.randrange(RECIPIENTS)}",
            "body": {"text": "hello"},
            "send_in": timedelta(seconds=luck.randrange(seconds)),
            "on_conflict": "shift",
        }
        for _ in range(MESSAGES)
    ]


def main() -> None:
    found = []
    for _ in range(ROUNDS):
        drafts = asked()
        with MemoryDispatcher(settings(), start=START) as dispatcher:
            times = [(time.perf_counter(), time.process_time())]
            for each in drafts:
                dispatcher.submit(**each)
            times.append((time.perf_counter(), time.process_time()))
            dispatcher.travel(days=DAYS)
            dispatcher.travel.until_idle()
            times.append((time.perf_counter(), time.process_time()))
            assert len(dispatcher.outbox) == MESSAGES
        found.append(times)
    print(f"{MESSAGES} messages in {DAYS} days, median of {ROUNDS}, seconds")
    for name, first, last in (("submit", 0, 1), ("travel", 1, 2), ("both", 0, 2)):
        wall, cpu = (
            statistics.median(each[last][clock] - each[first][clock] for each in found)
            for clock in (0, 1)
        )
        print(f"{name:8} {wall:6.2f} of the clock {cpu:6.2f} of the processor")


if __name__ == "__main__":
    main()
