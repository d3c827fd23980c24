"""procrastinate: a job for each message, deferred in batches, looked for every 50 ms."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import procrastinate
from procrastinate.types import JSONDict

from dispatcher import Settings
from peers import Submit, write_down

COMMANDS = [[sys.executable, "-m", "peers.procrastinate_jobs"]]
CONCURRENCY = 50


@contextmanager
def opened(settings: Settings) -> Iterator[Submit]:
    """Build the tables; yield what submits."""
    url = settings.database_url
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    with app.open():
        app.schema_manager.apply_schema()

        def submit(names: Sequence[str], at: datetime) -> Sequence[str]:
            deferrer = app.configure_task("send", schedule_at=at)
            jobs: list[JSONDict] = [{"name": name} for name in names]
            deferrer.batch_defer(*jobs)
            return names

        yield submit


async def work() -> None:
    """Run the worker."""
    url = os.environ["DISPATCHER_DATABASE_URL"]
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=10))

    @app.task(name="send")
    async def send(name: str) -> None:
        write_down(name)

    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, fetch_job_polling_interval=0.05)


if __name__ == "__main__":
    asyncio.run(work())
