"""The Celery tasks: a few lines each. They are shared, so any Celery app can carry them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from socket import gethostname
from typing import Any, cast
from uuid import UUID

from celery import shared_task
from celery.signals import (
    beat_embedded_init,
    beat_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)

from dispatcher.broker.items import item_rejected
from dispatcher.celery_app import tasks_dropped
from dispatcher.delivery.reconciler import Reconciled
from dispatcher.errors import DispatcherError, Unavailable
from dispatcher.submission import CaughtUp
from dispatcher.telemetry.liveness import Kind
from dispatcher.worker.process import here, made_here

log = logging.getLogger(__name__)

OURS: dict[str, Any] = {
    "acks_late": False,
    "ignore_result": True,
    "rate_limit": 0,
    "serializer": "json",
    "soft_time_limit": 86_400,
    "throws": (Unavailable,),
    "time_limit": 86_400,
}
"""Options of our tasks in any app, whatever that has for its own.

Above all no time limit of the app's: one that ends a process inside a send leaves its outcome
unknown. They bound themselves. (Celery takes 0 for "that of the pool".) What ``throws`` names is
told without a traceback: a server that is away for a while is no fault of the code.
"""


@shared_task(name="dispatcher.deliver", **OURS)
def deliver(message_ids: list[str], channel: str = "", is_first: bool = True) -> None:
    """Deliver these messages."""
    here().group_queue.deliver([UUID(each) for each in message_ids], channel, is_first=is_first)


@worker_shutting_down.connect
def stop(**_: object) -> None:
    """Put back what is not on its way yet, and tell how long the rest may take.

    This is called in the handler of a signal, where no logger may be: it could wait for itself.
    """
    app = made_here()
    if app is None:
        return
    app.stop_sending()
    told = (
        f"worker: sends that have begun end within {app.settings.stop_grace.total_seconds():g} s "
        "(transport_timeout and 10 s to record); killed sooner, their outcome is unknown\n"
    )
    with suppress(OSError):
        os.write(1, told.encode())


@worker_process_shutdown.connect
@worker_shutdown.connect
def finish(**_: object) -> None:
    """Let what is on its way come to its end, then say good-bye to the providers."""
    app = made_here()
    if app is not None and app.finish_sending():
        app.close_sending()


@tasks_dropped.connect
def enqueue_again(message_ids: list[UUID], **_: object) -> None:
    """Let the sweep enqueue at its next turn what this worker had to drop."""
    here().sweep.enqueue_again(message_ids)


@item_rejected.connect
def count_rejected(**_: object) -> None:
    """Count an item of the broker that this worker has deleted."""
    here().journal.item_rejected()
    here().pulse.item_rejected()


def _do(duty: str, work: Callable[[], object]) -> None:
    app = here()

    def counted() -> None:
        try:
            did = work()
        except DispatcherError as error:
            app.journal.swept(duty, None)
            if isinstance(error, Unavailable):
                log.warning("%s is tried again at its next turn: %s", duty, error)
            raise
        app.journal.swept(duty, _counts(did))

    if app.ticks.run(duty, counted):
        app.pulse.done(duty)


def _counts(did: object) -> dict[str, int]:
    return {"messages": did} if isinstance(did, int) else asdict(cast("Reconciled | CaughtUp", did))


@worker_ready.connect
def worker_is_ready(sender: object = None, **_: object) -> None:
    """Let this worker give signs of life, and answer Prometheus."""
    here().pulse.start(Kind.WORKER, getattr(sender, "hostname", ""))
    here().serve_metrics()


@beat_init.connect
@beat_embedded_init.connect
def beat_is_ready(**_: object) -> None:
    """Let this beat give signs of life."""
    here().pulse.start(Kind.BEAT, f"beat@{gethostname()}")


@worker_shutdown.connect
def worker_has_ended(**_: object) -> None:
    """Say that this worker has ended."""
    here().pulse.stop()


@shared_task(name="dispatcher.enqueue_due", **OURS)
def enqueue_due() -> None:
    """Enqueue what comes near."""
    _do("enqueue_due", here().sweep.enqueue_due)


@shared_task(name="dispatcher.rescue", **OURS)
def rescue() -> None:
    """Free what a dead worker left."""
    _do("rescue", here().sweep.rescue)


@shared_task(name="dispatcher.reconcile", **OURS)
def reconcile() -> None:
    """Make Redis agree with the store."""
    _do("reconcile", here().reconciler.reconcile)


@shared_task(name="dispatcher.catch_up", **OURS)
def catch_up() -> None:
    """Expire or book again what is overdue."""
    _do("catch_up", here().catch_up.run)


@shared_task(name="dispatcher.notify", **OURS)
def notify() -> None:
    """Make status messages for the callers who asked for them."""
    _do("notify", here().sweep.notify)


@shared_task(name="dispatcher.prune", **OURS)
def prune() -> None:
    """Delete what is old."""
    _do("prune", here().sweep.prune)
