"""The last transitions of all processes, in a Redis stream: ``GET /v1/events`` reads it.

A thread of each process writes its events a moment later. Events that wait when their process dies,
or while Redis is away, are not written; where a reply of Redis is lost, a transition is
written twice. The stream keeps a number of transitions, not a time. Programs that may miss no
transition read the store, or take status webhooks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import LooseKeys
from dispatcher.telemetry.journal import Event, Transition
from dispatcher.telemetry.threads import started

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

_COLLECT_SECONDS = 0.1
_MOST_WAITING = 50_000
_AT_ONCE = 1_000
_BEGINNING = "0-0"
_LEFT_OUT = frozenset({Transition.ENQUEUED, Transition.SNOOZED})
"""Steps that every message takes, or takes often, and that change nothing for its caller."""


class StreamEntry(NamedTuple):
    """A transition in the stream. ``id`` orders it there, ``at`` is when it was written."""

    id: str
    at: datetime
    transition: str
    message_id: UUID
    channel: str


class EventStream:
    """Writes and reads the stream, which keeps at least ``keep`` transitions."""

    def __init__(self, connect: Callable[[], Redis], *, namespace: str, keep: int) -> None:
        self._connect = connect
        self._name = LooseKeys(namespace).events
        self._keep = keep
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def on_event(self, event: Event) -> None:
        if event.kind in _LEFT_OUT:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append(event)
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = started(self._run, "events")

    def close(self, timeout: float = 2.0) -> None:
        """Write what waits, for so many seconds at most."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def last(self) -> str:
        """Return the newest id, ``0-0`` where there is none. Raises ReservationsUnavailable."""
        with translated(ReservationsUnavailable):
            found: Any = self._connect().xrevrange(self._name, count=1)
        return found[0][0].decode() if found else _BEGINNING

    def after(self, last: str, *, most: int) -> tuple[list[StreamEntry], bool]:
        """Return the transitions after one of that id, the oldest first, and at most ``most``.

        And whether some before them are not kept any more, or perhaps not where the stream was
        empty when ``last`` was read. Raises ReservationsUnavailable.
        """
        with translated(ReservationsUnavailable):
            pipeline = self._connect().pipeline(transaction=False)
            pipeline.xrange(self._name, min=f"({last}", count=most)
            pipeline.xrange(self._name, min=last, max=last, count=1)
            pipeline.xlen(self._name)
            found, kept, many = pipeline.execute()
        is_gap = many >= self._keep if last == _BEGINNING else not kept
        return [_read(each) for each in found], bool(found) and is_gap

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.wait(_COLLECT_SECONDS)
            while self._waiting:
                number = min(_AT_ONCE, len(self._waiting))
                events = [self._waiting.popleft() for _ in range(number)]
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    log.warning("dropped %d events: Redis is too slow for them", dropped)
                try:
                    self._write(events)
                except Exception as error:  # noqa: BLE001 - its thread must not end
                    log.warning("dropped %d events: %s", number, error)

    def _write(self, events: list[Event]) -> None:
        with translated(ReservationsUnavailable):
            pipeline = self._connect().pipeline(transaction=False)
            for event in events:
                entry: dict[Any, Any] = {
                    b"transition": event.kind.value,
                    b"message_id": event.message_id.bytes,
                    b"channel": event.channel,
                }
                pipeline.xadd(self._name, entry, maxlen=self._keep, approximate=True)
            pipeline.execute()


def _read(entry: tuple[bytes, dict[bytes, bytes]]) -> StreamEntry:
    id_, found = entry[0].decode(), entry[1]
    return StreamEntry(
        id=id_,
        at=datetime.fromtimestamp(int(id_.partition("-")[0]) / 1_000, tz=UTC),
        transition=found[b"transition"].decode(),
        message_id=UUID(bytes=found[b"message_id"]),
        channel=found[b"channel"].decode(),
    )
