"""Celery, configured the one way that is known to work here.

``celery -A dispatcher.celery_app worker`` and ``… beat`` find :data:`app`, made from the settings
of the environment when it is first asked for. Why each option has its value:
docs/decisions/0006-celery-settings.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from celery import Celery
from celery.utils.dispatch import Signal
from kombu import Queue

from dispatcher.settings import Settings

DELIVER = "dispatcher.deliver"
SWEEPS = ("enqueue_due", "rescue", "reconcile", "prune", "catch_up", "tell")
ON_REQUEST = frozenset({"catch_up", "tell"})
"""Duties that beat leaves out where the settings ask for none of their work."""
TASKS_MODULE = "dispatcher.worker.tasks"

tasks_dropped = Signal(name="tasks_dropped", providing_args=["message_ids"])
"""A worker lost its broker, and with it the tasks of these messages, which it held in memory."""

_settings_of: WeakKeyDictionary[Celery, Settings] = WeakKeyDictionary()
_WORKER_SOCKET_SECONDS = 5.0
_TICKS_KEPT, _LEAST_KEPT = 10, timedelta(seconds=10)
"""How many ticks of the sweep may wait for a free thread, and for how long at least."""
_HELD_PER_THREAD = 64
"""Tasks that a worker may hold for each of its threads, of each queue, on quorum queues.

Their bound is fixed; elsewhere it grows by each task that waits for its time.
"""
_CONNECT_ONCE = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
_SUBMIT_SOCKET_SECONDS = 0.4


def options(
    settings: Settings, *, socket_seconds: float = _WORKER_SOCKET_SECONDS
) -> dict[str, Any]:
    """Return Celery's whole configuration. ``socket_seconds`` bounds each word to the broker."""
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
        "worker_consumer": "dispatcher.broker.reconnection:Consumer",
        "worker_prefetch_multiplier": _HELD_PER_THREAD if _is_quorum(settings) else 1,
        "worker_soft_shutdown_timeout": 10.0,
        "worker_enable_soft_shutdown_on_idle": True,
        "worker_send_task_events": False,
        "worker_redirect_stdouts": False,
        "timezone": "UTC",
        "enable_utc": True,
        "beat_schedule": beat_schedule(settings),
        "beat_scheduler": "dispatcher.broker.reconnection:Scheduler",
        "beat_max_loop_interval": settings.sweep_interval.total_seconds(),
    }


def queues(settings: Settings, **more: Any) -> list[Queue]:
    """Return the queues as they are declared; ``more`` is for each of them."""
    arguments = {"x-queue-type": "quorum"} if _is_quorum(settings) else None
    return [Queue(name, queue_arguments=arguments, **more) for name in settings.queues]


def sweeps_every(settings: Settings) -> dict[str, timedelta]:
    """Return how often each duty of the sweep is begun."""
    return dict.fromkeys(SWEEPS, settings.sweep_interval) | {"prune": settings.prune_interval}


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the sweep as entries of a beat schedule. Each run expires after ten of its intervals.

    ``catch_up`` is left out where every channel sends what is overdue, ``tell`` where no channel
    carries what is told.
    """
    every = sweeps_every(settings)
    if len(settings.caught_up_by("send")) == len(settings.channels):
        del every["catch_up"]
    if not settings.status_channel:
        del every["tell"]
    return {
        f"dispatcher.{duty}": {
            "task": f"dispatcher.{duty}",
            "schedule": every[duty],
            "options": {
                "queue": settings.queue,
                "expires": max(_TICKS_KEPT * every[duty], _LEAST_KEPT).total_seconds(),
                "argsrepr": "",
                "kwargsrepr": "",
            },
        }
        for duty in every
    }


def create_app(settings: Settings, *, submitting: bool = False) -> Celery:
    """Make a Celery app. One for ``submitting`` gives up on a broker within a second."""
    app = Celery("dispatcher", set_as_current=not submitting, include=[TASKS_MODULE])
    seconds = _SUBMIT_SOCKET_SECONDS if submitting else _WORKER_SOCKET_SECONDS
    app.conf.update(options(settings, socket_seconds=seconds))
    if submitting:
        app.conf.broker_transport_options |= _CONNECT_ONCE
    return app


def remember(app: Celery, settings: Settings) -> None:
    """Let the tasks of ``app`` work with these settings."""
    _settings_of[app] = settings


def settings_of(app: Celery) -> Settings:
    """Return the settings of the tasks of ``app``: what it remembers, else the environment's.

    Raises InvalidSettings.
    """
    return _settings_of.get(app) or Settings.load()


def __getattr__(name: str) -> Celery:
    if name != "app":
        raise AttributeError(name)
    app = create_app(Settings.load())
    globals()["app"] = app
    return app


def _is_quorum(settings: Settings) -> bool:
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
