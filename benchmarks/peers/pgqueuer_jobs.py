"""PgQueuer: a job for each message, enqueued in batches, looked for at least every 50 ms."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job

from dispatcher import Settings
from peers import Submit, write_down

COMMANDS = [[sys.executable, "-m", "peers.pgqueuer_jobs"]]
BATCH = 50


@contextmanager
def opened(settings: Settings) -> Iterator[Submit]:
    """Build the tables; yield what submits."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queries = runner.run(_queries(settings.database_url))
        runner.run(queries.install())

        def submit(names: Sequence[str], at: datetime) -> Sequence[str]:
            many = len(names)
            wait = at - datetime.now(UTC)
            runner.run(
                queries.enqueue(
                    ["send"] * many, [name.encode() for name in names], [0] * many, [wait] * many
                )
            )
            return names

        yield submit


async def _queries(url: str) -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(url)))


async def work() -> None:
    """Run the worker."""
    connection = await asyncpg.connect(os.environ["DISPATCHER_DATABASE_URL"])
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint("send")
    async def send(job: Job) -> None:
        write_down((job.payload or b"").decode())

    await queue.run(dequeue_timeout=timedelta(milliseconds=50), batch_size=BATCH)


if __name__ == "__main__":
    uvloop.run(work())
