"""A worker and a beat that reconnect to their broker soon, and lose no task by it.

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

_INTERVALS: dict[str, Any] = {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 2.0}
"""Seconds between two tries to connect: the first wait, the growth of each, the longest."""


class Consumer(consumer.Consumer):
    """Celery's consumer, but it reconnects sooner, takes our tasks only, and names dropped ones.

    A worker drops the tasks that wait in its memory when its connection breaks. A broker that lost
    its data does not deliver them again; another one may take minutes.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[valid-type, misc]  # it is a class
        """Celery's steps, without its queues for delayed delivery, which nothing here uses."""

        default_steps = tuple(
            step for step in consumer.Consumer.Blueprint.default_steps
            if not str(step).endswith("DelayedDelivery")
        )  # fmt: skip

    def ensure_connected(self, connection: Any) -> Any:
        """Connect; try until it succeeds."""
        make = connection.create_transport
        connection.create_transport = lambda: items.tolerant(make())
        return super().ensure_connected(_with_short_intervals(connection))

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Return the handler of items from the broker: Celery's own, for our tasks only.

        It deletes any other item: Celery would quote it in its log, or end.
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
        """Delete an item that kombu cannot read as a message."""
        del error  # its text may quote the item
        self._reject(message, "envelope")

    def _reject(self, message: Any, part: str) -> None:
        lost: Any = vars(self)["connection_errors"]  # not in its stubs
        message.reject_log_error(items.log, lost)
        items.tell_rejected(part)

    def on_connection_error_after_connected(self, error: Exception) -> None:
        """Close the broken connection. Over Redis, do not restore tasks through it.

        kombu would try to restore each, and the error of that would end the worker.
        """
        transport = getattr(self.connection, "transport", None)
        for channel in getattr(transport, "channels", None) or ():
            channel.do_restore = False
        super().on_connection_error_after_connected(error)

    def call_soon_ack(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        """Acknowledge a task soon, unless its connection is closed by then.

        Over Redis kombu would try it all the same, and the error would end the worker.
        """
        given = partial(_if_open, p)
        return super().call_soon_ack(given, *args, **kwargs)  # type: ignore[misc]  # not in its stubs

    def on_close(self) -> None:
        """Drop the tasks of the broken connection, and send :data:`tasks_dropped`."""
        waiting = state.scheduled_requests  # type: ignore[attr-defined]  # newer than its stubs
        held = {*waiting, *state.reserved_requests} - {*state.active_requests}
        ids = [id_ for request in held if request.name == DELIVER for id_ in _message_ids(request)]
        super().on_close()
        if ids:  # in a thread: the database may be slow, and the worker must reconnect
            tell = partial(tasks_dropped.send, sender=self, message_ids=ids)
            threading.Thread(target=tell, name="tasks dropped", daemon=True).start()


class Scheduler(beat.Scheduler):
    """Celery's scheduler without a file, but it reconnects sooner, by a new connection.

    Celery's own would go on publishing on the broken connection, since no publish is retried here.
    """

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **more: Any
    ) -> Any:
        """Publish a tick; after an error, the next one uses a new connection."""
        try:
            return super().apply_async(entry, producer=producer, advance=advance, **more)
        except Exception:
            vars(self).pop("producer", None)
            broken = vars(self).pop("connection", None)
            if broken is not None:
                broken.collect()
            raise

    def _ensure_connected(self) -> Any:
        _with_short_intervals(self.connection)
        return super()._ensure_connected()  # type: ignore[misc]  # not in its stubs


def _with_short_intervals(connection: Any) -> Any:
    connection.ensure_connection = partial(connection.ensure_connection, **_INTERVALS)
    return connection


def _if_open(acknowledge: Any, *args: Any, **kwargs: Any) -> None:
    channel = acknowledge.__self__.channel  # `acknowledge` is a method of kombu's message
    if channel is None or channel.connection is not None:
        acknowledge(*args, **kwargs)


def _message_ids(request: Any) -> list[UUID]:
    try:
        return [UUID(each) for each in request.args[0]]
    except Exception:  # noqa: BLE001 - a forged task names no messages to enqueue again
        return []
