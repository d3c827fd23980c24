"""The Celery tasks: a few lines each. They are shared, so any Celery app can carry them."""

from __future__ import annotations

from socket import gethostname
from typing import Any
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

from dispatcher.bootstrap import close_here, finish_here, here, stop_here
from dispatcher.celery_app import tasks_dropped
from dispatcher.liveness import Kind

OURS: dict[str, Any] = {
    "acks_late": False,
    "ignore_result": True,
    "rate_limit": 0,
    "serializer": "json",
    "soft_time_limit": 86_400,
    "time_limit": 86_400,
}
"""Options of our tasks in any app, whatever that has for its own.

Above all no time limit of the app's: one that ends a process inside a hand-over leaves its outcome
unknown. They bound themselves. (Celery takes 0 for "that of the pool".)
"""


@shared_task(name="dispatcher.deliver", **OURS)
def deliver(message_ids: list[str], channel: str = "", is_first: bool = True) -> None:
    """Deliver these messages."""
    here().lanes.deliver([UUID(each) for each in message_ids], channel, is_first=is_first)


@worker_shutting_down.connect
def stop(**_: object) -> None:
    """Put back what is not on its way yet."""
    stop_here()


@worker_process_shutdown.connect
@worker_shutdown.connect
def finish(**_: object) -> None:
    """Let what is on its way come to its end, then say good-bye to the providers."""
    if finish_here():
        close_here()


@tasks_dropped.connect
def hand_over_again(message_ids: list[UUID], **_: object) -> None:
    """Let the sweep hand over at its next turn what this worker had to drop."""
    here().sweep.hand_over_again(message_ids)


@worker_ready.connect
def worker_is_ready(sender: object = None, **_: object) -> None:
    """Let this worker give signs of life."""
    here().pulse.start(Kind.WORKER, getattr(sender, "hostname", ""))


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
    """Hand over what comes near."""
    here().ticks.run("enqueue_due", here().sweep.enqueue_due)
    here().pulse.done("enqueue_due")


@shared_task(name="dispatcher.rescue", **OURS)
def rescue() -> None:
    """Free what a dead worker left."""
    here().ticks.run("rescue", here().sweep.rescue)
    here().pulse.done("rescue")


@shared_task(name="dispatcher.reconcile", **OURS)
def reconcile() -> None:
    """Make Redis agree with the store."""
    here().ticks.run("reconcile", here().sweep.reconcile)
    here().pulse.done("reconcile")


@shared_task(name="dispatcher.catch_up", **OURS)
def catch_up() -> None:
    """Expire or book again what is overdue."""
    here().ticks.run("catch_up", here().catch_up.run)
    here().pulse.done("catch_up")


@shared_task(name="dispatcher.prune", **OURS)
def prune() -> None:
    """Delete what is old."""
    here().ticks.run("prune", here().sweep.prune)
    here().pulse.done("prune")
