"""Celery's configuration (decision 0006 has the reasons), and the table of the sweep's duties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from celery import Celery
from kombu import Queue

from dispatcher.settings import Settings

DELIVER = "dispatcher.deliver"


class Duty(NamedTuple):
    """``run`` names a method of a part of ``App``; without ``is_needed`` all settings need it."""

    interval: Literal["sweep_interval", "prune_interval"]
    run: str
    is_needed: Callable[[Settings], bool] | None = None

    def every(self, settings: Settings) -> timedelta:
        return cast("timedelta", getattr(settings, self.interval))


DUTIES: Mapping[str, Duty] = {
    "enqueue_due": Duty("sweep_interval", "sweep.enqueue_due"),
    "rescue": Duty("sweep_interval", "sweep.rescue"),
    "reconcile": Duty("sweep_interval", "reconciler.reconcile"),
    "prune": Duty("prune_interval", "sweep.prune"),
    "catch_up": Duty(
        "sweep_interval", "sweep.catch_up", lambda settings: bool(settings.expiring_channels)
    ),
    "notify": Duty(
        "sweep_interval", "sweep.notify", lambda settings: bool(settings.status_channel)
    ),
    "book_ahead": Duty("sweep_interval", "series_list.book_ahead"),
}
"""Every duty by its name: beat, tasks, metrics, status and doctor follow this table."""
TASKS_MODULE = "dispatcher.celery.tasks"
WORKER_STEP = f"{TASKS_MODULE}:Serving"
"""The step of a worker's start that serves its metrics and health."""

_settings_of: WeakKeyDictionary[Celery, Settings] = WeakKeyDictionary()
_WORKER_SOCKET_SECONDS = 5.0
_TICKS_WAITING, _LEAST_WAITING = 10, timedelta(seconds=10)
"""After how many of its intervals a tick expires, and after how long at the earliest."""
_PREFETCHED_PER_THREAD = 64
"""Celery's prefetch multiplier on quorum queues: unacknowledged tasks per thread and queue.

Quorum queues have a fixed bound; on others it grows with each task that waits for its ETA.
"""
_CONNECT_ONCE = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
_SUBMIT_SOCKET_SECONDS = 0.4


def options(
    settings: Settings, *, socket_seconds: float = _WORKER_SOCKET_SECONDS
) -> dict[str, Any]:
    """Return Celery's whole configuration. ``socket_seconds`` bounds each call of the broker."""
    return {
        "broker_url": settings.broker_url,
        "broker_transport_options": _transport_options(settings, socket_seconds),
        "broker_connection_timeout": socket_seconds,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
        "result_backend": None,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_publish_retry": False,
        "task_acks_late": False,
        "task_default_queue": settings.queue,
        "task_queues": queues(settings),
        "task_create_missing_queues": False,
        "worker_consumer": "dispatcher.celery.consumer:Consumer",
        "worker_prefetch_multiplier": _PREFETCHED_PER_THREAD if is_quorum(settings) else 1,
        "worker_soft_shutdown_timeout": 10.0,
        "worker_enable_soft_shutdown_on_idle": True,
        "worker_send_task_events": False,
        "worker_redirect_stdouts": False,
        "timezone": "UTC",
        "enable_utc": True,
        "beat_schedule": beat_schedule(settings),
        "beat_scheduler": "dispatcher.celery.consumer:Scheduler",
        "beat_max_loop_interval": settings.sweep_interval.total_seconds(),
    }


def queues(settings: Settings, **more: Any) -> list[Queue]:
    arguments = {"x-queue-type": "quorum"} if is_quorum(settings) else None
    return [Queue(name, queue_arguments=arguments, **more) for name in settings.queues]


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    schedule = {}
    for name, duty in DUTIES.items():
        if duty.is_needed is not None and not duty.is_needed(settings):
            continue
        every = duty.every(settings)
        schedule[f"dispatcher.{name}"] = {
            "task": f"dispatcher.{name}",
            "schedule": every,
            "options": {
                "queue": settings.queue,
                "expires": max(_TICKS_WAITING * every, _LEAST_WAITING).total_seconds(),
                "argsrepr": "",
                "kwargsrepr": "",
            },
        }
    return schedule


def create_app(settings: Settings, *, submitting: bool = False) -> Celery:
    """Make a Celery app. One for ``submitting`` waits for the broker at most a second."""
    app = Celery("dispatcher", set_as_current=not submitting, include=[TASKS_MODULE])
    seconds = _SUBMIT_SOCKET_SECONDS if submitting else _WORKER_SOCKET_SECONDS
    app.conf.update(options(settings, socket_seconds=seconds))
    app.steps["worker"].add(WORKER_STEP)
    if submitting:
        app.conf.broker_transport_options |= _CONNECT_ONCE
    return app


def remember(app: Celery, settings: Settings) -> None:
    _settings_of[app] = settings


def settings_of(app: Celery) -> Settings:
    """Return the settings of ``install``, else of the environment. Raises InvalidSettings."""
    return _settings_of.get(app) or Settings.load()


def is_quorum(settings: Settings) -> bool:
    is_rabbitmq = urlsplit(settings.broker_url).scheme.startswith(("amqp", "pyamqp"))
    return is_rabbitmq and settings.queue_type == "quorum"


def _transport_options(settings: Settings, socket_seconds: float) -> dict[str, Any]:
    scheme = urlsplit(settings.broker_url).scheme
    if not scheme.startswith(("redis", "valkey", "sentinel")):
        return {
            "confirm_publish": True,
            "connect_timeout": socket_seconds,
            "read_timeout": None,
            "write_timeout": socket_seconds,
        }
    return {
        "visibility_timeout": settings.redelivery_timeout.total_seconds(),
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "socket_timeout": socket_seconds,
        "socket_connect_timeout": socket_seconds,
        "socket_keepalive": True,
        "max_connections": 50,
    }
