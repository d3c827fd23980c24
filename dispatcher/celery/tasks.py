"""The Celery tasks and signal handlers. Any Celery app can have these tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from mmap import mmap
from operator import attrgetter
from socket import gethostname
from typing import Any
from uuid import UUID

from billiard.process import current_process
from celery import Celery, bootsteps, shared_task
from celery.app import app_or_default
from celery.signals import (
    beat_embedded_init,
    beat_init,
    worker_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)

from dispatcher.app import App
from dispatcher.celery.configuration import DUTIES, Duty, settings_of
from dispatcher.celery.queue import rank_of
from dispatcher.delivery import StopFlag
from dispatcher.delivery.reconciler import ReconcileResult
from dispatcher.errors import DispatcherError, Unavailable
from dispatcher.telemetry.liveness import EVERY, Kind

log = logging.getLogger(__name__)


def _keep_options(task: Any, app: Celery) -> None:
    """Set our options again: Celery has just applied the ``task_annotations`` of the app."""
    super(task, task).on_bound(app)
    for name, value in OPTIONS.items():
        setattr(task, name, value)


OPTIONS: dict[str, Any] = {
    "acks_late": False,
    "expires": None,
    "ignore_result": True,
    "on_bound": classmethod(_keep_options),
    "rate_limit": 0,
    "serializer": "json",
    "soft_time_limit": 86_400,
    "throws": (Unavailable,),
    "time_limit": 86_400,
}
"""Options of our tasks, whatever the defaults and the ``task_annotations`` of the app.

The app's time limits must not apply: one that ends a process during a send leaves its outcome
unknown. The tasks limit themselves by ``transport_timeout``. (Celery reads 0 as "that of the
pool".) Errors in ``throws`` are logged without a traceback: an unavailable server is no bug.
"""


_apps: dict[int, App] = {}
"""By process id. A forked child inherits its parent's entry and never uses it. There is no lock: if
a thread of the parent had it at the fork, it would stay locked in the child."""

_TOLD_AGAIN_SECONDS = 60.0
_told_at: dict[str, float] = {}
"""Why duties failed, and when this process logged it."""

_stop_flags: list[StopFlag] = []
"""The last flag is this worker's. Its main process shares the flag with its pool, because Celery
tells the main process alone that the worker is to stop."""


def here() -> App:
    """Return the app of this process; the first call makes it. Raises InvalidSettings."""
    pid = os.getpid()
    if pid not in _apps:
        # Two threads may each make an App; the first one stays. An App has no parts yet.
        flag = _stop_flags[-1] if _stop_flags else None
        _apps.setdefault(pid, App(settings_of(app_or_default()), stop_flag=flag))
    return _apps[pid]


@shared_task(name="dispatcher.deliver", **OPTIONS)
def deliver(message_ids: list[str], channel: str, rank: int) -> None:
    here().group_queue.deliver([*map(UUID, message_ids)], channel, rank=rank_of(rank))


@worker_init.connect
def share_stop_flag(**_: object) -> None:
    _stop_flags.append(mmap(-1, 1))


@worker_shutting_down.connect
def stop(**_: object) -> None:
    """Begin no further send, and print (a logger could deadlock) how long the others may take."""
    if _stop_flags:  # the main process of a prefork pool may have no App
        _stop_flags[-1][0] = 1
    app = _apps.get(os.getpid())
    if app is None:
        return
    app.stop_sending()
    text = (
        f"worker: sends that have begun end within {app.settings.stop_grace.total_seconds():g} s "
        "(transport_timeout and 10 s to record); killed sooner, their outcome is unknown\n"
    )
    with suppress(OSError):
        os.write(1, text.encode())


@worker_process_shutdown.connect
@worker_shutdown.connect
def finish(**_: object) -> None:
    app = _apps.get(os.getpid())
    if app is not None and app.finish_sending():
        app.close_sending()


def enqueue_again(message_ids: list[UUID]) -> None:
    """Let the sweep enqueue messages whose tasks this worker lost with its connection."""
    here().sweep.enqueue_again(message_ids)


def count_rejected() -> None:
    """Count an item that was no task of the dispatcher; this worker has deleted it."""
    try:
        here().journal.count(lambda meter: meter.item_rejected())
        here().pulse.item_rejected()
    except Exception:
        log.exception("a deleted item of the broker was not counted")  # no item ends a worker


def _task_of(name: str, duty: Duty) -> Any:
    @shared_task(name=f"dispatcher.{name}", **OPTIONS)
    def run() -> None:
        app = here()
        work = attrgetter(duty.run)(app)
        if app.ticks.run(name, duty.every(app.settings), lambda: _count(app, name, work)):
            app.pulse.done(name)

    return run


def _count(app: App, duty: str, work: Callable[[], int | ReconcileResult]) -> None:
    try:
        done = work()
    except DispatcherError as error:
        app.journal.count(lambda meter: meter.swept(duty, None))
        if isinstance(error, Unavailable) and _is_news(str(error)):
            log.warning(
                "sweep: %s failed, beat starts it again; this reason is logged once a minute for "
                "all duties: %s", duty, error,
            )  # fmt: skip
        raise
    did = {"messages": done} if isinstance(done, int) else asdict(done)
    app.journal.count(lambda meter: meter.swept(duty, did))


def _is_news(text: str) -> bool:
    now = here().clock.monotonic()
    for told in [told for told, at in _told_at.items() if now - at >= _TOLD_AGAIN_SECONDS]:
        _told_at.pop(told, None)
    is_news = text not in _told_at
    _told_at.setdefault(text, now)
    return is_news


@worker_ready.connect
def worker_is_ready(sender: object = None, **_: object) -> None:
    here().pulse.start(Kind.WORKER, getattr(sender, "hostname", ""))


class Serving(bootsteps.StartStopStep):
    """Serves a worker's metrics and health: after the fork, and before it waits for its broker."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Serve. The timer runs in the event loop, so it says that the loop turns."""
        health = here().serve_metrics(Kind.WORKER)
        if health is not None:
            parent.timer.call_repeatedly(EVERY.total_seconds(), health.turned)


@beat_init.connect
@beat_embedded_init.connect
def beat_is_ready(sender: Any = None, **_: object) -> None:
    """Start the signs of life of this beat, and serve its health unless a worker contains it."""
    here().pulse.start(Kind.BEAT, f"beat@{gethostname()}")
    if sender is None or current_process().name != "MainProcess":
        return
    health = here().serve_metrics(Kind.BEAT)
    if health is not None:
        scheduler = sender.scheduler
        scheduler.tick = health.turning()(scheduler.tick)
        scheduler.apply_async = health.publishing()(scheduler.apply_async)


@worker_shutdown.connect
def worker_has_ended(**_: object) -> None:
    here().pulse.stop()


duties = {name: _task_of(name, duty) for name, duty in DUTIES.items()}
