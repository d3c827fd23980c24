"""Measure what a permit costs: three limits at once, one limit, awaited, and in bytes.

The floor is an empty script with the same keys and arguments, called the same way. The peers are
asked once for each limit, as they are meant to be, except pyrate-limiter, which takes several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import cast

import redis
import redis.asyncio
from limits import parse as parse_peer
from limits.aio.storage import RedisStorage as AsyncStorage
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindow
from limits.storage import RedisStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)
from pyrate_limiter import Duration, Rate, RedisBucket
from pyrate_limiter import Limiter as PyrateLimiter
from rounds import folder, measure, report
from throttled import RateLimiterType, RedisStore, Throttled

from dispatcher.embedded import embedded
from dispatcher.limiters import (
    GCRA,
    Algorithm,
    Concurrency,
    CounterPerKey,
    FixedWindow,
    Limiter,
    Limits,
    SlidingCounter,
    SlidingList,
    SlidingLog,
)

CALLS, ROUNDS = 100, 60
"""Short turns and many of them, so that what else runs on the machine meets all alike."""
THREE = ((1_000, "minute"), (5_000, "hour"), (10_000, "day"))
TEXTS = tuple(f"{n}/{unit}" for n, unit in THREE)
ONE = parse_peer("10000000/minute")
KEYS = 500
"""How many keys take turns, so that states are found and none is reached."""

Peer = Callable[[str], object]


def main() -> None:
    with folder() as path, embedded(path) as settings:
        client = redis.Redis.from_url(settings.redis_url)
        client.config_set("appendonly", "no")
        families = ours()
        limiters = {name: Limits(limits).on(client) for name, limits in families.items()}
        alternatives = {"empty script": empty_script(client)}
        alternatives |= {name: turning(each.acquire) for name, each in limiters.items()}
        compare("Limiters: one permit from three limits at once", alternatives)
        others = {name: turning(each) for name, each in peers(settings.redis_url).items()}
        alternatives = {name: alternatives[name] for name in ("empty script", "FixedWindow")}
        compare("Limiters: others, asked for the same", alternatives | others)
        client.flushdb()
        compare("Limiters: one limit, remembered and not", ways(client, settings.redis_url))
        awaited(settings.redis_url)
        weights(client, limiters, settings.redis_url)
        weights_of_permits(client)


def compare(title: str, alternatives: dict[str, Callable[[], object]]) -> None:
    """Measure and print; pyrate-limiter keeps threads of its own running once it was asked."""
    figures = measure(alternatives, calls=CALLS, rounds=ROUNDS, warm_up=KEYS)
    report(title, figures, floor="empty script")


def ours() -> dict[str, Sequence[Algorithm]]:
    """Return three limits of each algorithm."""
    return {
        "FixedWindow": [FixedWindow(n, unit) for n, unit in THREE],
        "FixedWindow in Europe/Berlin": [
            FixedWindow(n, unit, align="Europe/Berlin") for n, unit in THREE
        ],
        "CounterPerKey": [CounterPerKey(n, unit) for n, unit in THREE],
        "SlidingCounter": [SlidingCounter(n, unit) for n, unit in THREE],
        "GCRA": [GCRA(n, unit, max_burst=n - 1) for n, unit in THREE],
        "SlidingList": [SlidingList(n, unit) for n, unit in THREE],
        "SlidingLog": [SlidingLog(n, unit) for n, unit in THREE],
        "Concurrency": [Concurrency(1_000, name=unit) for _, unit in THREE],
    }


def peers(url: str) -> dict[str, Peer]:
    """Return what asks the peers about the same three limits."""
    storage = RedisStorage(peer_url(url))
    three = [parse_peer(text) for text in TEXTS]

    def limits_library(strategy: RateLimiter) -> Peer:
        name = type(strategy).__name__  # one storage would mix their keys up
        return lambda key: [strategy.hit(each, name, key) for each in three]

    store = RedisStore(url)

    def throttled_library(kind: RateLimiterType) -> Peer:
        each_limit = [
            Throttled(using=kind.value, quota=f"{n}/{unit[0]}", store=store, key_prefix=unit)
            for n, unit in THREE
        ]
        return lambda key: [each.limit(key) for each in each_limit]

    lengths = (Duration.MINUTE, Duration.HOUR, Duration.DAY)
    rates = [Rate(n, length) for (n, _), length in zip(THREE, lengths, strict=True)]
    # Each of its buckets has a thread that uses a connection now and then.
    client = redis.Redis.from_url(url, max_connections=10_000)
    buckets: dict[str, PyrateLimiter] = {}

    def pyrate(key: str) -> object:
        if key not in buckets:
            bucket = cast(RedisBucket, RedisBucket.init(rates, client, f"pyrate:{key}"))
            buckets[key] = PyrateLimiter(bucket)
        return buckets[key].try_acquire(key, blocking=False)

    return {
        "limits, fixed window × 3": limits_library(FixedWindowRateLimiter(storage)),
        "limits, moving window × 3": limits_library(MovingWindowRateLimiter(storage)),
        "limits, sliding counter × 3": limits_library(SlidingWindowCounterRateLimiter(storage)),
        "pyrate-limiter, bucket kept": pyrate,
        "throttled-py, fixed window × 3": throttled_library(RateLimiterType.FIXED_WINDOW),
        "throttled-py, GCRA × 3": throttled_library(RateLimiterType.GCRA),
    }


def peer_url(url: str) -> str:
    """Return the URL of a Redis as limits writes it."""
    return url.replace("unix://", "redis+unix://")


def ways(client: redis.Redis, url: str) -> dict[str, Callable[[], object]]:
    """Return one limit with and without ids, and that of a peer."""
    limit = FixedWindow(10_000_000, "minute")
    peer = FixedWindowRateLimiter(RedisStorage(peer_url(url)))
    return {
        "empty script": empty_script(client),
        "FixedWindow": turning(limit.on(client).acquire),
        "FixedWindow, remember=None": turning(limit.on(client, prefix="b", remember=None).acquire),
        "limits, fixed window": turning(lambda key: peer.hit(ONE, key)),
    }


def awaited(url: str) -> None:
    """Measure awaited calls: a round is CALLS of them, one after the other in one event loop."""
    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(url)
        limit = FixedWindow(10_000_000, "minute")
        plain, bare = limit.on(client), limit.on(client, prefix="b", remember=None)
        peer = AsyncFixedWindow(AsyncStorage(f"async+{peer_url(url)}", implementation="redispy"))
        turns = count()

        def batch(act: Callable[[str], Awaitable[object]]) -> Callable[[], object]:
            async def calls() -> None:
                for _ in range(CALLS):
                    await act(f"customer-{next(turns) % KEYS}")

            return lambda: runner.run(calls())

        alternatives = {
            "limits, fixed window": batch(lambda key: peer.hit(ONE, key)),
            "FixedWindow": batch(plain.acquire),
            "FixedWindow, remember=None": batch(bare.acquire),
        }
        figures = measure(alternatives, calls=1, rounds=ROUNDS, warm_up=KEYS // CALLS)
        each = {name: [value / CALLS for value in values] for name, values in figures.items()}
        report("Limiters: awaited, one permit from one limit", each, floor="limits, fixed window")
        runner.run(client.aclose())


def turning(act: Peer) -> Callable[[], object]:
    """Return what acts for one key after the other."""
    turns = count()
    return lambda: act(f"customer-{next(turns) % KEYS}")


def empty_script(client: redis.Redis) -> Callable[[], object]:
    """Return a call with the keys and the arguments of three limits, of a script of one line."""
    script = client.register_script("return 1")
    words: list[str | int] = ["fixed_window", 1_000, 60_000] * 3
    turns = count()

    def call() -> object:
        key = f"customer-{next(turns) % KEYS}"
        keys = [f"{{empty:{key}}}:{name}-1000-60000" for name in ("p0", "p1", "a", "b", "c")]
        return script(keys=keys, args=[60_000, *words, "AAAAAAAAAAAA", 1, 1, 1])

    return call


def weights_of_permits(client: redis.Redis) -> None:
    """Print how many bytes each permit adds that a limiter keeps; docs/limiters.md has them."""
    print("\n### Bytes that a permit of one limit adds to its key\n")
    print("| | up to 100 permits | up to 10,000 |\n|---|---|---|")
    for limit in (SlidingList(20_000, "hour"), SlidingLog(20_000, "hour"), Concurrency(20_000)):
        sizes = [weight_of(client, limit, n) / n for n in (100, 10_000)]
        print(f"| {type(limit).__name__} | {sizes[0]:.0f} | {sizes[1]:.0f} |")


def weight_of(client: redis.Redis, limit: Algorithm, permits: int) -> int:
    """Return the bytes of the key of one limit after so many permits, one a call."""
    client.flushdb()
    limiter = limit.on(client, remember=None)
    for _ in range(permits):
        limiter.acquire("customer-1")
    [key] = cast("list[bytes]", client.keys("*"))
    return cast(int, client.memory_usage(key, samples=0))


def weights(client: redis.Redis, limiters: dict[str, Limiter], url: str) -> None:
    """Print what the three limits of one key weigh after 100 permits, all its keys together."""
    print("\n### Bytes that three limits keep for one key after 100 permits\n")
    print("| | bytes | of these to recognise repeated calls |\n|---|---|---|")
    takers: dict[str, Peer] = {name: each.acquire for name, each in limiters.items()}
    for name, take in (takers | peers(url)).items():
        client.flushdb()
        for _ in range(100):
            take("customer-1")
        found = cast("list[bytes]", client.keys("*"))
        sizes = {key: cast(int, client.memory_usage(key, samples=0)) for key in found}
        remembered = sum(size for key, size in sizes.items() if b":permits:" in key)
        print(f"| {name} | {sum(sizes.values())} | {remembered} |")


if __name__ == "__main__":
    main()
