"""A worker and a beat that reconnect to their broker soon, and lose no task by it.

Celery finds both by the options ``worker_consumer`` and ``beat_scheduler``.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from uuid import UUID
from weakref import WeakSet

from celery import beat
from celery.worker import consumer
from vine import promise

from dispatcher.celery import items
from dispatcher.celery.configuration import DELIVER, is_quorum, settings_of, tasks_dropped
from dispatcher.times.clock import SystemClock

_INTERVALS: dict[str, Any] = {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 2.0}
"""Seconds between two tries to connect: the first wait, the growth of each, the longest."""


class Consumer(consumer.Consumer):
    """Celery's consumer, but it reconnects sooner, takes our tasks only, and names dropped ones.

    When its connection breaks a worker drops the tasks that wait in its memory. A broker that lost
    its data does not deliver them again.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        self._taken: WeakSet[Any] = WeakSet()
        """The items of this connection that were taken as tasks; a done task forgets its own."""
        super().__init__(*args, **more)

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[valid-type, misc]  # it is a class
        """Celery's steps, without its queues for delayed delivery, which nothing here uses."""

        default_steps = tuple(
            step for step in consumer.Consumer.Blueprint.default_steps
            if not str(step).endswith("DelayedDelivery")
        )  # fmt: skip

    def ensure_connected(self, connection: Any) -> Any:
        make, has_quorum = connection.create_transport, is_quorum(settings_of(self.app))

        def create_transport() -> Any:
            transport = items.tolerant(make())
            if has_quorum:  # they take no prefetch of a whole channel, as Celery knows from 5.5 on
                transport.qos_semantics_matches_spec = lambda _: True
            return transport

        connection.create_transport = create_transport
        return super().ensure_connected(_with_short_intervals(connection))

    def create_task_handler(self, promise: Any = None) -> Any:
        """Return Celery's handler of items, for our tasks only: it would quote others, or end."""
        del promise
        answer: Any = answer_while_open  # Celery's own is a class
        begin = super().create_task_handler(promise=answer)
        ahead = items.LATEST + 2 * settings_of(self.app).horizon
        clock = SystemClock()

        def take(message: Any) -> None:
            try:
                message.headers = items.headers_of(message, clock.now() + ahead)
            except items.NoTask as error:
                self._reject(message, str(error))
            else:
                taken.add(message)
                begin(message)

        taken = self._taken
        return take

    def on_decode_error(self, message: Any, error: Exception) -> None:
        del error  # its text may quote the item
        self._reject(message, "envelope")

    def _reject(self, message: Any, part: str) -> None:
        lost: Any = vars(self)["connection_errors"]  # not in its stubs
        message.reject_log_error(items.log, lost)
        items.tell_rejected(part)

    def on_connection_error_after_connected(self, error: Exception) -> None:
        """Close it. Over Redis kombu would restore each task through it, which ends the worker."""
        transport = getattr(self.connection, "transport", None)
        for channel in getattr(transport, "channels", None) or ():
            channel.do_restore = False
        super().on_connection_error_after_connected(error)

    def on_close(self) -> None:
        """Drop the tasks of the broken connection, and send :data:`tasks_dropped`."""
        # A task is acknowledged when it begins.
        dropped = [item for item in self._taken if not item.acknowledged]
        ids = [
            UUID(id_)
            for item in dropped if item.headers["task"] == DELIVER
            for id_ in item.payload[0][0]
        ]  # fmt: skip
        self._taken.clear()
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


def answer_while_open(call: Any, answers: tuple[Any, ...], **more: Any) -> promise:
    """Return the promise of an acknowledgement or a rejection, for while its connection is open.

    Later ones are dropped: over Redis kombu's error would end the worker.
    """
    return promise(call, tuple(partial(_if_open, answer) for answer in answers), **more)


def _if_open(answer: Any, *args: Any, **more: Any) -> None:
    channel = answer.__self__.channel
    if channel is None or channel.connection is not None:
        answer(*args, **more)
