"""How a worker and a beat come back to their broker: soon, and without forgetting what they held.

Celery finds both by the options ``worker_consumer`` and ``beat_scheduler``.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from uuid import UUID

from celery import beat
from celery.worker import consumer, state

from dispatcher.broker import items
from dispatcher.celery_app import DELIVER, settings_of, tasks_dropped
from dispatcher.times.clock import SystemClock

_KNOCKS: dict[str, Any] = {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 2.0}
"""Seconds between two tries to connect: the first wait, what is added to each, the longest."""


class Consumer(consumer.Consumer):
    """Celery's own, but it knocks sooner, takes our tasks only, and tells what it drops.

    A worker drops the tasks that wait in its memory when its line breaks. A broker that was lost
    with them gives none back, and one that was not may take minutes.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[valid-type, misc]  # a class it is
        """Celery's steps, without the queues that would delay tasks for their publishers."""

        default_steps = tuple(
            step for step in consumer.Consumer.Blueprint.default_steps
            if not str(step).endswith("DelayedDelivery")
        )  # fmt: skip

    def ensure_connected(self, connection: Any) -> Any:
        """Connect, however long it takes."""
        make = connection.create_transport
        connection.create_transport = lambda: items.tolerant(make())
        return super().ensure_connected(_knocking_soon(connection))

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Return what takes each item of the broker: Celery's own takes those that are our tasks.

        What is no task of ours is deleted; Celery would quote it, or end by it.
        """
        begin = super().create_task_handler(*args, **kwargs)
        ahead = items.LATEST + 2 * settings_of(self.app).horizon
        clock = SystemClock()

        def take(message: Any) -> None:
            try:
                message.headers = items.headers_of(message, clock.now() + ahead)
            except items.NoTask as error:
                self._reject(message, str(error))
            else:
                begin(message)

        return take

    def on_decode_error(self, message: Any, error: Exception) -> None:
        """Delete an item that is no message at all."""
        del error  # its text may quote the item
        self._reject(message, "envelope")

    def _reject(self, message: Any, part: str) -> None:
        lost: Any = vars(self)["connection_errors"]  # not in its stubs
        message.reject_log_error(items.log, lost)
        items.tell_rejected(part)

    def on_connection_error_after_connected(self, error: Exception) -> None:
        """Let go of the line. Over Redis, do not give back tasks that it cannot carry any more.

        kombu would try it with each, and what comes of that ends the worker.
        """
        transport = getattr(self.connection, "transport", None)
        for channel in getattr(transport, "channels", None) or ():
            channel.do_restore = False
        super().on_connection_error_after_connected(error)

    def call_soon_ack(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        """Acknowledge a task in a moment, unless the line that it came over is closed by then.

        kombu would try it over Redis, and what comes of that ends the worker.
        """
        given = partial(_if_open, p)
        return super().call_soon_ack(given, *args, **kwargs)  # type: ignore[misc]  # not in its stubs

    def on_close(self) -> None:
        """Forget what came over the line that broke."""
        waiting = state.scheduled_requests  # type: ignore[attr-defined]  # newer than its stubs
        held = {*waiting, *state.reserved_requests} - {*state.active_requests}
        ids = [id_ for request in held if request.name == DELIVER for id_ in _message_ids(request)]
        super().on_close()
        if ids:  # the store may take its time: nobody waits for it
            tell = partial(tasks_dropped.send, sender=self, message_ids=ids)
            threading.Thread(target=tell, name="tasks dropped", daemon=True).start()


class Scheduler(beat.Scheduler):
    """Celery's own, which keeps nothing on disk, but it knocks sooner, and on a new line.

    Celery's would publish on the line that broke for ever, since nothing here tries twice.
    """

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **more: Any
    ) -> Any:
        """Publish a tick."""
        try:
            return super().apply_async(entry, producer=producer, advance=advance, **more)
        except Exception:
            vars(self).pop("producer", None)
            line = vars(self).pop("connection", None)
            if line is not None:
                line.collect()
            raise

    def _ensure_connected(self) -> Any:
        _knocking_soon(self.connection)
        return super()._ensure_connected()  # type: ignore[misc]  # not in its stubs


def _knocking_soon(connection: Any) -> Any:
    connection.ensure_connection = partial(connection.ensure_connection, **_KNOCKS)
    return connection


def _if_open(acknowledge: Any, *args: Any, **kwargs: Any) -> None:
    channel = acknowledge.__self__.channel  # of a message of kombu's
    if channel is None or channel.connection is not None:
        acknowledge(*args, **kwargs)


def _message_ids(request: Any) -> list[UUID]:
    try:
        return [UUID(each) for each in request.args[0]]
    except Exception:  # noqa: BLE001 - whoever forged it, there is nothing to hand over again
        return []
