"""A worker's consumer, which takes our tasks only, and a beat's scheduler: both reconnect soon.

Celery finds them by the options ``worker_consumer`` and ``beat_scheduler``.

Every item that is no task of the dispatcher is rejected: deleted, logged without its content, and
counted. Celery would quote it in its log, and some items would end each worker that takes them.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any
from uuid import UUID
from weakref import WeakSet

from amqp.exceptions import FrameSyntaxError
from amqp.method_framing import frame_handler
from celery import beat
from celery.worker import consumer
from kombu.transport import redis
from kombu.transport.virtual import Message
from vine import promise

from dispatcher.celery import tasks
from dispatcher.celery.configuration import DELIVER, DUTIES, is_quorum, settings_of
from dispatcher.times.clock import SystemClock

log = logging.getLogger(__name__)

LATEST = timedelta(days=1)
"""How far beyond twice the horizon the ETA of a task may lie."""
MOST_IDS = 1_000
"""Most messages in one task: the largest ``group_size``."""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_JSON = ("application/json", "utf-8")
_HEADER_FRAME = 2
_BEFORE_PROPERTIES = 12
"""Bytes of an AMQP header frame before the flags that say which properties follow."""
_NO_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
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
            transport = tolerant(make())
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
        ahead = LATEST + 2 * settings_of(self.app).horizon
        clock = SystemClock()

        def take(message: Any) -> None:
            try:
                message.headers = headers_of(message, clock.now() + ahead)
            except NoTask as error:
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
        message.reject_log_error(log, lost)
        tell_rejected(part)

    def on_connection_error_after_connected(self, error: Exception) -> None:
        """Close it. Over Redis kombu would restore each task through it, which ends the worker."""
        transport = getattr(self.connection, "transport", None)
        for channel in getattr(transport, "channels", None) or ():
            channel.do_restore = False
        super().on_connection_error_after_connected(error)

    def on_close(self) -> None:
        """Drop the tasks of the broken connection, and let the sweep enqueue their messages."""
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
            again = partial(tasks.enqueue_again, ids)
            threading.Thread(target=again, name="tasks dropped", daemon=True).start()


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


class NoTask(ValueError):
    """An item is no task of the dispatcher. The text names the part that differs, no content."""


def headers_of(message: Any, latest: datetime) -> dict[str, Any]:
    """Return the headers of a checked item whose ETA is ``latest`` at most. Raises NoTask."""
    headers = _read("headers", lambda: dict(message.headers))
    arguments_fit = _read("task", lambda: _TASKS[headers["task"]])
    task_id = _read("id", lambda: str(UUID(headers["id"])))
    eta = _instant("eta", headers)
    if eta is not None and eta > latest:
        raise NoTask("eta")
    _instant("expires", headers)
    if (message.content_type, message.content_encoding) != _JSON:
        raise NoTask("content type")
    body = _read("body", lambda: message.payload)
    match body:
        case [list(arguments), {**named}, {**embed}]:
            pass
        case _:
            raise NoTask("body")
    if named or not arguments_fit(arguments):
        raise NoTask("arguments")
    if embed != _NO_EMBED:
        raise NoTask("embed")
    return {
        "task": headers["task"],
        "id": task_id,
        "eta": headers.get("eta"),
        "expires": headers.get("expires"),
        "ignore_result": True,
        "argsrepr": "",
        "kwargsrepr": "",
    }


def tell_rejected(part: str) -> None:
    log.error(
        "deleted an item of the broker that is no dispatcher task, by its %s; find the program "
        "that writes to the queues of this broker",
        part,
    )
    tasks.count_rejected()


def tolerant(transport: Any) -> Any:
    """Let a transport of kombu pass unreadable items on: its own error would end the worker."""
    if issubclass(getattr(transport, "Channel", object), redis.Channel):
        transport.Channel = _tolerant(transport.Channel)
    elif transport.driver_name == "py-amqp":
        transport.client.transport_options |= {"frame_handler": _tolerant_frames}
    return transport


def _tolerant_frames(*args: Any, **more: Any) -> Callable[[Any], Any]:
    handle = frame_handler(*args, **more)

    def on_frame(frame: tuple[int, int, Any]) -> Any:
        try:
            return handle(frame)
        except (ValueError, OverflowError, OSError, FrameSyntaxError):
            kind, channel, content = frame
            if kind != _HEADER_FRAME:
                raise
            return handle((kind, channel, bytes(content[:_BEFORE_PROPERTIES]) + b"\0\0"))

    return on_frame


class _ReadableMessage(Message):
    """An item of Redis that kombu can read, and could record as unacknowledged. Raises NoTask."""

    def __init__(self, payload: Any, channel: Any = None, **more: Any) -> None:
        _read("envelope", lambda: super(_ReadableMessage, self).__init__(payload, channel, **more))
        info: Any = self.delivery_info
        route = _read("envelope", lambda: (info["exchange"], info["routing_key"]))
        if not all(isinstance(word, str) for word in (self.delivery_tag, *route)):
            raise NoTask("envelope")


@cache
def _tolerant(channel: Any) -> Any:
    class Tolerant(channel):  # type: ignore[misc]  # which class it is, the URL says
        Message = _ReadableMessage
        handlers: Mapping[str, Callable[..., Any]]

        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.handlers = {
                kind: partial(_unless_unreadable, read) for kind, read in self.handlers.items()
            }

    return Tolerant


def _unless_unreadable(read: Callable[..., Any], *args: Any, **more: Any) -> Any:
    try:
        return read(*args, **more)
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        # The item is no JSON, or NoTask, and is already gone from Redis. Errors of a connection
        # or of a task have other types.
        tell_rejected("envelope")
        return True


def _read(part: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - any error means that it is no task
        raise NoTask(part) from None


def _instant(part: str, headers: Mapping[str, Any]) -> datetime | None:
    text = headers.get(part)
    if text is None:
        return None
    instant: datetime = _read(part, lambda: datetime.fromisoformat(text).astimezone(UTC))
    return instant


def _are_to_deliver(arguments: list[Any]) -> bool:
    match arguments:
        case [list(ids), str(), int()] if 0 < len(ids) <= MOST_IDS:
            return all(isinstance(id_, str) and _UUID.fullmatch(id_) for id_ in ids)
    return False


_TASKS: dict[str, Callable[[list[Any]], bool]] = {
    DELIVER: _are_to_deliver,
    **{f"dispatcher.{duty}": lambda arguments: not arguments for duty in DUTIES},
}
