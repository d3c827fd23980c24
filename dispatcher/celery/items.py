"""Items in the queues of the broker. A worker takes those that are tasks of the dispatcher.

It rejects every other item: deletes it, logs it without its content, and counts it. Celery would
quote it in its log, and some items would end each worker that takes them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any
from uuid import UUID

from amqp.exceptions import FrameSyntaxError
from amqp.method_framing import frame_handler
from celery.utils.dispatch import Signal
from kombu.transport import redis
from kombu.transport.virtual import Message

from dispatcher.celery.configuration import DELIVER, DUTIES

log = logging.getLogger(__name__)

item_rejected = Signal(name="item_rejected", providing_args=[])
"""Sent when a worker has deleted an item that is no task of the dispatcher."""

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


class NoTask(ValueError):
    """An item is no task of the dispatcher. The text names the part that differs, no content."""


def headers_of(message: Any, latest: datetime) -> dict[str, Any]:
    """Check an item, its body included, and return the headers that our tasks need.

    ``latest`` is the latest ETA that is accepted. Raises NoTask.
    """
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
        "rejected an item of the broker: its %s is not that of a dispatcher task; the item is "
        "deleted; find the program that writes to the queues of this broker",
        part,
    )
    item_rejected.send(sender=None)


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
        case [list(ids), str(), bool()] if 0 < len(ids) <= MOST_IDS:
            return all(isinstance(id_, str) and _UUID.fullmatch(id_) for id_ in ids)
    return False


_TASKS: dict[str, Callable[[list[Any]], bool]] = {
    DELIVER: _are_to_deliver,
    **{f"dispatcher.{duty}": lambda arguments: not arguments for duty in DUTIES},
}
