"""Measure how late an event loop comes round while it awaits 2,000 submits at once.

Against the same loop that awaits nothing. A task that sleeps for a millisecond notes by how much
longer that took. The last column is the processor time of the loop's own thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.store.migrate import migrate

BODY = {"text": "Your appointment is tomorrow at 9."}
ROUNDS = 5
TICK = 0.001


def main(calls: int) -> None:
    print(f"\n### Delay of a loop that awaits {calls:,} submits at once\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | p50 ms | p99 ms | longest ms | seconds | µs of the processor a call |")
    print("|---|---|---|---|---|---|")
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = servers.model_copy(update={"database_url": url})
        parts = App(settings)
        migrate(parts.database)
        parts.close()
        asyncio.run(compare(Dispatcher(settings), calls))


async def compare(dispatcher: Dispatcher, calls: int) -> None:
    async with dispatcher:
        await submits(dispatcher, "warm-up", 50)
        ratios = []
        for number in range(ROUNDS):
            idle = await measured("nothing", asyncio.sleep(2), 0)
            ours = await measured("asubmit", submits(dispatcher, f"round-{number}", calls), calls)
            ratios.append(ours / idle)
    print(f"\np99 against the loop that awaits nothing: {sorted(ratios)[ROUNDS // 2]:.1f} ×")


async def submits(dispatcher: Dispatcher, name: str, calls: int) -> None:
    at = datetime.now(UTC) + timedelta(days=2)
    await asyncio.gather(*(
        dispatcher.asubmit(channel="memory", recipient=f"{name}-{each}", body=BODY, send_at=at)
        for each in range(calls)
    ))  # fmt: skip


async def measured(name: str, work: Awaitable[object], calls: int) -> float:
    """Print a line of the table; return the 99th percentile of the delay in ms."""
    ended = asyncio.Event()
    ticking = asyncio.create_task(delays(ended))
    await asyncio.sleep(0.05)
    began, worked = time.perf_counter(), time.thread_time()
    await work
    took, worked = time.perf_counter() - began, time.thread_time() - worked
    ended.set()
    found = sorted(each * 1_000 for each in await ticking)
    p99 = found[len(found) * 99 // 100]
    own = f"{worked / calls * 1e6:.0f}" if calls else "–"
    print(f"| {name} | {found[len(found) // 2]:.1f} | {p99:.1f} | {found[-1]:.1f} "
          f"| {took:.1f} | {own} |")  # fmt: skip
    return p99


async def delays(ended: asyncio.Event) -> list[float]:
    found = []
    while not ended.is_set():
        began = time.perf_counter()
        await asyncio.sleep(TICK)
        found.append(time.perf_counter() - began - TICK)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2_000)
