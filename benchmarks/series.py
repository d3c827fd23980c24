"""Measure what series cost: a pass where 1,000 are due, of 1,000 and of 1,000,000; a preview.

PostgreSQL and Redis of its own. Each pass books one occurrence of each series that is due; the
passes of the two houses take turns.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
from delivery import prepare
from rounds import facts, folder
from submit import postgres

from dispatcher import Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.times.recurrence import Recurrence
from dispatcher.times.send_time import to_ms
from tests.support.clock import MovableClock

DUE, MANY, ROUNDS = 1_000, 1_000_000, 5
DAY = timedelta(days=1)
START = datetime(2031, 1, 1, tzinfo=UTC)
COPY = """
INSERT INTO dispatcher_events (name, token, definition, booked_until, due_at)
SELECT 'series:idle-' || n, 'idle', definition, booked_until, due_at + interval '300 days'
FROM dispatcher_events, generate_series(1, %(number)s) n WHERE name = 'series:daily-0'
"""
WISH: dict[str, Any] = {"rule": "FREQ=DAILY;BYHOUR=9", "channel": "memory", "body": {}}


class House:
    """A dispatcher with ``DUE`` series that come due each day, and ``idle`` others."""

    def __init__(self, settings: Settings, url: str, idle: int) -> None:
        self.clock = MovableClock(START)
        self.app = App(settings, self.clock)
        for number in range(DUE):
            recipient = f"person-{number}"
            wish = WISH | {"recipient": recipient, "start": f"2031-01-01T08:{number % 60:02}"}
            self.app.series_list.add(f"daily-{number}", wish)
        began, worked = time.perf_counter(), time.process_time()
        booked = self.app.series_list.book_ahead()
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        print(f"- the first pass: {booked:,} occurrences, {booked / seconds:,.0f} a second; "
              f"CPU {cpu / booked * 1e3:.3f} s per 1,000")  # fmt: skip
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(COPY, {"number": idle})
            connection.execute("VACUUM ANALYZE dispatcher_events")
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def next_day(self) -> None:
        """Book the next occurrence of each series."""
        self.clock.advance(DAY)
        began, worked = time.perf_counter(), time.process_time()
        booked = self.app.series_list.book_ahead()
        self.seconds.append(time.perf_counter() - began)
        self.cpu.append(time.process_time() - worked)
        if booked != DUE:
            raise SystemExit(f"{booked} were booked")


def main() -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        houses = {}
        for idle in (1, MANY):
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE idle_{idle}")
            own = urlsplit(url)._replace(path=f"/idle_{idle}").geturl()
            changes = {"database_url": own, "namespace": f"idle-{idle}", "quotas": ("1000/hour",)}
            settings = Settings(**servers.model_dump() | changes)
            prepare(settings)
            houses[idle] = House(settings, own, idle)
        for _ in range(ROUNDS):
            for house in houses.values():
                house.next_day()
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    for idle, house in houses.items():
        print(
            f"- {DUE:,} due of {DUE + idle:,}: {statistics.median(house.seconds):.3f} s, "
            f"{min(house.seconds):.3f}–{max(house.seconds):.3f}; "
            f"CPU {statistics.median(house.cpu):.3f} s per 1,000 occurrences"
        )
    ratio = [m / f for f, m in zip(*(house.seconds for house in houses.values()), strict=True)]
    print(f"- ratio {statistics.median(ratio):.2f}, {min(ratio):.2f}–{max(ratio):.2f}")
    for rule in ("FREQ=DAILY;BYHOUR=9", "FREQ=WEEKLY;BYDAY=MO,TH", "FREQ=HOURLY;INTERVAL=6"):
        recurrence = Recurrence.parse(rule, start=datetime(2011, 1, 1))  # noqa: DTZ001 - a wall time
        figures = []
        for zone in (
            "Europe/Berlin",
            "Europe/Paris",
            "Europe/Madrid",
            "Europe/Rome",
            "Europe/Oslo",
        ):
            worked = time.process_time()
            recurrence.between(zone, to_ms(START), to_ms(START + 365 * DAY))
            figures.append(time.process_time() - worked)
        shown = ", ".join(f"{figure * 1e3:.1f}" for figure in figures)
        print(f"- a year of {rule}: {shown} ms of CPU in five zones")


if __name__ == "__main__":
    main()
