"""The last transitions of all processes, in a Redis stream: ``GET /v1/events`` reads it.

A thread of each process writes its events a moment later. Events that wait when their process dies,
or while Redis is away, are not written; where a reply of Redis is lost, a transition is
written twice. The stream keeps a number of transitions, not a time. Programs that may miss no
transition read the store, or take status webhooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import LooseKeys
from dispatcher.telemetry.journal import Event, Transition
from dispatcher.telemetry.threads import Backlog

if TYPE_CHECKING:
    from redis import Redis

_MOST_WAITING = 50_000
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
        self._backlog = Backlog("events", self._write, most=_MOST_WAITING)
        self.close = self._backlog.close

    def on_event(self, event: Event) -> None:
        if event.kind not in _LEFT_OUT:
            self._backlog.add(event)

    def last(self) -> str:
        """Return the newest id, ``0-0`` where there is none. Raises ReservationsUnavailable."""
        with translated(ReservationsUnavailable):
            newest: Any = self._connect().xrevrange(self._name, count=1)
        return newest[0][0].decode() if newest else _BEGINNING

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
            entries, kept, length = pipeline.execute()
        is_gap = length >= self._keep if last == _BEGINNING else not kept
        return [_read(entry) for entry in entries], bool(entries) and is_gap

    def _write(self, events: Sequence[Event]) -> None:
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
    id_, fields = entry[0].decode(), entry[1]
    return StreamEntry(
        id=id_,
        at=datetime.fromtimestamp(int(id_.partition("-")[0]) / 1_000, tz=UTC),
        transition=fields[b"transition"].decode(),
        message_id=UUID(bytes=fields[b"message_id"]),
        channel=fields[b"channel"].decode(),
    )
