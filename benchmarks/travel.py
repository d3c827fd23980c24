"""Tests on the time of a test: their start, a small one, and 30 days with 10,000 messages.

Prints seconds of the clock and of this process: of the first dispatcher, which starts the servers;
of a test that submits 50 messages, with its dispatcher; and of the submits and the journey of
10,000, whose drafts are made before. Redis has a process of its own.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher import Settings
from dispatcher.testing import MemoryDispatcher

MESSAGES, SUBMITTED, DAYS, RECIPIENTS, ROUNDS = 10_000, 50, 30, 1_000, 5
START = datetime(2026, 11, 23, 12, tzinfo=UTC)
STARTED, SMALL = "first dispatcher", f"test with {SUBMITTED} submits"
SUBMITS, JOURNEY = f"{MESSAGES} submits", f"{DAYS} days with {MESSAGES}"

Figures = dict[str, list[tuple[float, float]]]


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


def drafts(count: int) -> list[dict[str, Any]]:
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
        for _ in range(count)
    ]


@contextmanager
def measured(figures: Figures, name: str) -> Iterator[None]:
    clock, process = time.perf_counter(), time.process_time()
    yield
    passed = time.perf_counter() - clock, time.process_time() - process
    figures.setdefault(name, []).append(passed)


def small_test(dispatcher_settings: Settings) -> None:
    with MemoryDispatcher(dispatcher_settings, start=START) as dispatcher:
        for draft in drafts(SUBMITTED):
            dispatcher.submit(**draft)


def main() -> None:
    figures: Figures = {}
    with measured(figures, STARTED), MemoryDispatcher(settings(), start=START):
        pass
    for _ in range(ROUNDS):
        with measured(figures, SMALL):
            small_test(settings())
        requests = drafts(MESSAGES)
        with MemoryDispatcher(settings(), start=START) as dispatcher:
            with measured(figures, SUBMITS):
                for request in requests:
                    dispatcher.submit(**request)
            with measured(figures, JOURNEY):
                dispatcher.travel(days=DAYS)
                dispatcher.travel.until_idle()
            assert len(dispatcher.outbox) == MESSAGES
    print(f"seconds, median of {ROUNDS} (least, most); the first dispatcher: once")
    for name, times in figures.items():
        clock, process = map(sorted, zip(*times, strict=True))
        middle, spread = statistics.median(clock), f"({clock[0]:.3f}, {clock[-1]:.3f})"
        print(f"{name:24} {middle:7.3f} {spread:18} processor {statistics.median(process):7.3f}")


if __name__ == "__main__":
    main()
