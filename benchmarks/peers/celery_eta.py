"""Celery: a task with an ETA for each message, on Redis. Nothing is judged, stored or recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from delivery import POOL, plain_app

from dispatcher import Settings
from peers import Submit, write_down

COMMANDS = [
    [
        *(sys.executable, "-m", "celery", "-A", "peers.celery_eta:app", "worker", *POOL),
        *("--without-gossip", "--without-mingle", "--queues=plain"),
    ]
]


@contextmanager
def opened(settings: Settings) -> Iterator[Submit]:
    """Yield what submits."""
    submitting = plain_app(settings)
    with submitting.producer_pool.acquire(block=True) as producer:

        def submit(names: Sequence[str], at: datetime) -> Sequence[str]:
            for name in names:
                submitting.send_task("send", [name], eta=at, producer=producer, ignore_result=True)
            return names

        yield submit


if "LEDGER" in os.environ:  # in the worker
    app = plain_app(Settings.load())
    app.task(name="send", ignore_result=True)(write_down)
