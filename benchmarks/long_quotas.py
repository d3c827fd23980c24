"""Measure what judging and booking one time costs as N grows, and what a reservation weighs.

Windows are 90 % full: 0.9 N members for each length of the quota, evenly spread over three of
them; times are asked for in the middle one. The worst case is a window that is full but for single
gaps: N − 1 members in every span of the length, so that no walk can jump. It is judged in turns,
with the same scripts each time; what a script takes is the least of its turns, as the others may
hold the time in which the server waited for a processor. The floor is an empty script with the same
keys and arguments, called the same way.

Then a shift over the longest allowed horizon: a minute a week is open, each but the last is taken.
And a campaign: batches of 1,000 that ask for one time and are spread by a quota of few per second.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rounds import folder, measure, report

from dispatcher.embedded import embedded
from dispatcher.errors import QuietHours, QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import AnyQuota, Quota, parse_quota
from dispatcher.redis.client import after_set_up
from dispatcher.reservation import encoding as terms_of
from dispatcher.reservation.booking import BookingRequest, Slot, Terms
from dispatcher.reservation.encoding import longest_ms
from dispatcher.reservation.fence import Fence
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.upkeep import Upkeep
from dispatcher.reservation.windows import Windows
from dispatcher.scope import OWN_SCOPE, own_scope
from dispatcher.settings import Settings
from dispatcher.times import periods, quiet_hours, zones
from dispatcher.times.clock import SystemClock
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import from_ms, to_ms

DAY_MS = 86_400_000
START = to_ms(datetime(2040, 1, 1, tzinfo=UTC))
COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
TERMS = Terms((own_scope("provider"),))
CALLS = 300
TURNS = 7
RARE_ZONE = "Europe/Berlin"
OPEN_HOURS = "sun 02:30-02:31"
LONG_TURNS = 21


class Scope:
    """One window under one quota, on a namespace of its own."""

    def __init__(self, url: str, quota: AnyQuota) -> None:
        fence = Fence(namespace=f"n {quota}", shards=1, reaches_ms={OWN_SCOPE: longest_ms([quota])})
        self.client = redis.Redis.from_url(
            url, protocol=2, redis_connect_func=after_set_up(fence), retry=Retry(NoBackoff(), 0)
        )
        rules = RuleBook({OWN_SCOPE: [quota]}, lambda _: (), SystemClock())
        self.windows = Windows(self.client, rules, keys=fence.keys, under_way=timedelta(minutes=2))
        upkeep = Upkeep(self.client, fence, rules)
        rebuild = upkeep.begin()
        if rebuild is not None:
            upkeep.open(rebuild)
        self.keys = fence.keys[0]
        self.window = self.keys.window("provider")

    def fill(self, times: list[int]) -> None:
        """Replace the members by these times."""
        self.client.delete(self.window)
        draw = random.Random(1)
        for start in range(0, len(times), 20_000):
            members = {draw.randbytes(16): each for each in times[start : start + 20_000]}
            self.client.zadd(self.window, members)

    def book_and_release(self, at_ms: int) -> None:
        """Book a time, and take the booking away again."""
        request = BookingRequest(new_id(), TERMS, at_ms, at_ms)
        self.windows.book([request])
        self.client.zrem(self.window, request.message_id.bytes)


def main() -> None:
    with folder() as path, embedded(path) as settings:
        with redis.Redis.from_url(settings.redis_url) as client:
            client.config_set("appendonly", "no")  # its rewriting would be measured too
        flat(settings.redis_url)
        worst(settings.redis_url)
        rare(settings.redis_url)
        campaign(settings.redis_url)
        weigh(settings.redis_url)


def flat(url: str) -> None:
    alternatives: dict[str, Callable[[], object]] = {}
    scripts: dict[int, list[float]] = {}
    for count in COUNTS:
        scope = Scope(url, Quota(count, DAY_MS))
        each = round(count * 0.9)
        scope.fill([START + n * DAY_MS // each for n in range(3 * each)])
        free = cycle(free_times(scope))
        if not alternatives:
            alternatives["empty script (and a ZREM)"] = empty_script(scope)

        def ours(scope: Scope = scope, free: cycle[int] = free) -> None:
            scope.book_and_release(next(free))

        alternatives[f"N = {count:,} (and a ZREM)"] = ours
        scripts[count] = [ms for _ in range(CALLS) for ms in watched(scope, ours)[2]]
    title = "One quota of N a day, 90 % full: judged and booked"
    report(title, measure(alternatives, calls=CALLS), floor="N = 10 (and a ZREM)")
    print("\n| N | scripts | median script ms | longest script ms |")
    print("|---|---|---|---|")
    for count, took in scripts.items():
        print(f"| {count:,} | {len(took)} | {statistics.median(took):.2f} | {max(took):.2f} |")


def campaign(url: str) -> None:
    """Print how long each 1,000 take to be booked one behind another, from one asked time on."""
    print("\n| a campaign under | messages before | ms per 1,000 | scripts | longest script ms |")
    print("|---|---|---|---|---|")
    for quota in (Quota(1, 1_000), Quota(10, 60_000), Quota(100, 60_000)):
        scope = Scope(url, quota)
        for before in range(0, 3_000, 1_000):
            took, _, scripts = watched(scope, partial(book_thousand, scope))
            print(f"| {quota} | {before:,} | {took:.0f} | {len(scripts)} | {max(scripts):.1f} |")


def book_thousand(scope: Scope) -> None:
    latest = START + 30 * DAY_MS
    wanted = [BookingRequest(new_id(), TERMS, START, latest) for _ in range(1_000)]
    found = scope.windows.book(wanted)
    assert all(isinstance(each, int) for each in found), "each is booked, at this time"


def empty_script(scope: Scope) -> Callable[[], object]:
    """Return a call of a script that does nothing, with the keys and arguments of a booking."""
    empty = scope.client.register_script("return {{'booked', 1, ARGV[1]}}")
    names = [scope.keys.pending, scope.keys.epoch, scope.window]

    def call() -> None:
        message_id = new_id()
        empty(keys=names, args=[message_id.bytes, *range(18)])
        scope.client.zrem(scope.window, message_id.bytes)

    return call


def free_times(scope: Scope) -> list[int]:
    """Return times of the middle day that fit."""
    draw = random.Random(3)
    found: list[int] = []
    for _ in range(100 * CALLS):
        if len(found) == CALLS:
            return found
        at_ms = START + DAY_MS + draw.randrange(DAY_MS)
        try:
            scope.book_and_release(at_ms)
        except QuotaExceeded:
            continue
        found.append(at_ms)
    raise RuntimeError("the window has no room")


def worst(url: str) -> None:
    print("\n### Full but for single gaps: N − 1 members in every span of the length\n")
    print(
        "| N | whole judgement ms | CPU ms of Redis | script calls | median script ms "
        "| longest script ms | longest of any turn ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for count in (1_000, 10_000, 100_000, 1_000_000):
        scope = Scope(url, Quota(count, DAY_MS))
        gap = DAY_MS / (count - 1)
        scope.fill([round(START + n * gap) for n in range(3 * (count - 1))])
        judged(scope)  # the server learns the scripts
        took, used, scripts = zip(*(judged(scope) for _ in range(TURNS)), strict=True)
        least = [min(turns) for turns in zip(*scripts, strict=True)]
        print(
            f"| {count:,} | {statistics.median(took):.0f} | {statistics.median(used):.0f} "
            f"| {len(least)} | {statistics.median(least):.1f} | {max(least):.1f} "
            f"| {max(map(max, scripts)):.1f} |"
        )
        scope.client.delete(scope.window)


def judged(scope: Scope) -> tuple[float, float, list[float]]:
    """Book a time, and return what it took, of it Redis' processor, and each script: all in ms."""

    def book() -> None:
        with suppress(QuotaExceeded):
            scope.book_and_release(START + DAY_MS + DAY_MS // 3 + 1)

    return watched(scope, book)


def watched(scope: Scope, work: Callable[[], object]) -> tuple[float, float, list[float]]:
    """Return what a call took, of it Redis' processor, and each script: all in ms."""
    scope.client.config_set("slowlog-log-slower-than", 0)
    scope.client.config_set("slowlog-max-len", 100_000)
    scope.client.slowlog_reset()
    used, began = redis_cpu(scope), time.perf_counter()
    work()
    took, used = time.perf_counter() - began, redis_cpu(scope) - used
    scope.client.config_set("slowlog-log-slower-than", 10_000)
    log = reversed(scope.client.slowlog_get(100_000))
    scripts = [each["duration"] / 1e3 for each in log if each["command"].startswith(b"EVALSHA")]
    return took * 1e3, used * 1e3, scripts


def rare(url: str) -> None:
    horizon = Settings.model_fields["max_horizon"].default
    closed = Hours.parse(OPEN_HOURS).complement
    if closed is None:
        raise RuntimeError("nothing is ever closed")
    terms = Terms(TERMS.scopes, RARE_ZONE, closed)
    start, end = from_ms(START), from_ms(START) + horizon
    ends = [until for _, until in closed.inside(RARE_ZONE, START, to_ms(end))]
    *taken, last = [each for each in ends if each < to_ms(end)]
    title = f"A shift over {horizon.days} days of {OPEN_HOURS}, each minute but the last taken"
    print(f"\n### {title}\n\nThe first call of a process, and later ones.\n")
    print(
        "| quota | answer | calls | ms, median | least–most | CPU ms | in scripts | script calls |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for quota in ("1/minute in local", "1/minute"):
        scope = Scope(url, parse_quota(quota))
        scope.fill(taken)

        def shift(scope: Scope = scope) -> int:
            request = BookingRequest(new_id(), terms, to_ms(start), to_ms(end))
            [booked] = scope.windows.book([request])
            scope.client.zrem(scope.window, request.message_id.bytes)
            return booked.at_ms if isinstance(booked, Slot) else 0

        def refuse(scope: Scope = scope) -> int:
            request = BookingRequest(new_id(), terms, to_ms(start), to_ms(start))
            [refused] = scope.windows.book([request])
            return to_ms(refused.next_slot) if isinstance(refused, QuietHours) else 0

        for name, call in {"the last minute": shift, "QuietHours, with it": refuse}.items():
            if call() != last:
                raise RuntimeError(f"{quota}: another slot")
            before: dict[str, Callable[[], object]] = {"first": forget, "later": gc.collect}
            for number, prepare in before.items():
                took, used, scripts = [], [], []
                for _ in range(LONG_TURNS):
                    prepare()
                    began = time.process_time()
                    wall, _, durations = watched(scope, call)
                    used.append((time.process_time() - began) * 1e3)
                    took.append(wall)
                    scripts.append(durations)
                print(
                    f"| {quota} | {name} | {number} | {statistics.median(took):.0f} "
                    f"| {min(took):.0f}–{max(took):.0f} | {statistics.median(used):.0f} "
                    f"| {statistics.median(map(sum, scripts)):.0f} | {len(scripts[0])} |"
                )


def forget() -> None:
    """Forget what was computed of zones and calendars, as if this process had just begun."""
    for module in (periods, quiet_hours, terms_of, zones):
        for each in vars(module).values():
            clear: Callable[[], None] | None = getattr(each, "cache_clear", None)
            if clear is not None:
                clear()


def redis_cpu(scope: Scope) -> float:
    used = scope.client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def weigh(url: str) -> None:
    """Print how many bytes of Redis a confirmed reservation takes."""
    print("\n### Bytes in Redis per reservation, 100,000 recipients (settled)\n")
    print("| reservations each | bytes per reservation |")
    print("|---|---|")
    client = redis.Redis.from_url(url)
    fence = Fence(namespace="dispatcher", shards=16, reaches_ms={OWN_SCOPE: DAY_MS})
    for each in (1, 10):
        client.flushall()
        before = client.info("memory")["used_memory"]
        pipeline = client.pipeline(transaction=False)
        for n in range(100_000):
            window = fence.keys[n % 16].window(f"+49151{n:08d}")
            members = {new_id().bytes: START + turn * 7_200_000 for turn in range(each)}
            pipeline.zadd(window, members)
            if n % 5_000 == 4_999:
                pipeline.execute()
        after = client.info("memory")["used_memory"]
        print(f"| {each} | {(after - before) / 100_000 / each:.0f} |")
    client.flushall()


if __name__ == "__main__":
    main()
