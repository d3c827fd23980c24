"""One event for each transition of a message, given to the metrics, the log and all listeners.

The logger ``dispatcher.journal`` says it at INFO, or WARNING where a person may have to look; steps
that every message takes, or takes often, at DEBUG. Each record carries the :data:`FIELDS` that fit
as attributes. None of them is a body, an address or a secret.

The store is the truth, not the events: a process that dies right after a commit gives none.

Two listeners hear them a moment later, on threads of their own. Hooks are functions of the
administrator's that are called with messages: after the commit, at most once; nothing that a hook
does reaches a submit or a delivery. The Redis stream keeps the last transitions of all processes:
``GET /v1/events`` reads it. Events that wait when their process dies, or while Redis is away, are
not written; where a reply of Redis is lost, a transition is written twice. The stream keeps a
number of transitions, not a time. Programs that may miss no transition read the store, or take
status webhooks.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    InvalidSettings,
    InvalidValue,
    OutcomeUnknown,
    QuietHours,
    QuotaExceeded,
    ReservationsUnavailable,
    StoreUnavailable,
    Suppressed,
    Unavailable,
    load_named,
    quoted,
)
from dispatcher.message import Message, Status
from dispatcher.redis.errors import translated
from dispatcher.redis.keys import LooseKeys
from dispatcher.times.send_time import as_text

if TYPE_CHECKING:
    from redis import Redis

    from dispatcher.telemetry.prometheus import Meter

log = logging.getLogger(__name__)
_lines = logging.getLogger("dispatcher.journal")

T = TypeVar("T")

FIELDS = (
    "transition", "message_id", "channel", "recipient", "attempt", "outcome", "send_at", "due_at",
    "wait_seconds", "limit",
)  # fmt: skip
"""What a record may carry: ``recipient`` is a digest, instants are ISO 8601 in UTC."""

Fact = str | int | float | datetime | timedelta | None


class Transition(StrEnum):
    SCHEDULED = "scheduled"
    """Accepted and stored."""
    ENQUEUED = "enqueued"
    """Given to Celery, perhaps once more."""
    SENT = "sent"
    RETRIED = "retried"
    """Tried without success, or given another round by a person: to be tried again."""
    SNOOZED = "snoozed"
    """Put back by a limiter, or late in quiet hours; no attempt counts."""
    DELAYED = "delayed"
    """Snoozed by a limit that keeps it from its time for longer than ``tell_delay_after``."""
    FAILED = "failed"
    HELD = "held"
    """The outcome is unknown, and a person decides."""
    RELEASED = "released"
    """Held, and to be tried once more."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RESCUED = "rescued"
    """Taken back from a worker that died or froze."""
    RESCHEDULED = "rescheduled"
    """Given another time by its caller."""


_OFTEN = (Transition.ENQUEUED, Transition.SNOOZED)
"""Steps that every message takes, or takes often, and that change nothing for its caller."""
_GRAVE = (Transition.FAILED, Transition.HELD, Transition.RESCUED)
_LEVELS = dict.fromkeys(_OFTEN, logging.DEBUG) | dict.fromkeys(_GRAVE, logging.WARNING)

_REASONS: tuple[tuple[type[DispatcherError], str], ...] = (
    (QuotaExceeded, "quota"),
    (QuietHours, "quiet_hours"),
    (Suppressed, "suppressed"),
    (InvalidValue, "invalid"),
    (IdempotencyConflict, "idempotency"),
    (BatchRefused, "batch"),
    (OutcomeUnknown, "unknown"),
    (Unavailable, "unavailable"),
)


class Event(NamedTuple):
    """A transition of a message that is committed. ``details`` are named as in :data:`FIELDS`.

    ``message`` is given where it is at hand, as the transition left it.
    """

    kind: Transition
    message_id: UUID
    channel: str
    details: Mapping[str, Fact]
    message: Message | None = None


Listener = Callable[[Event], object]
"""It is called often, by many threads, and must be quick and not raise."""


class Journal:
    """Tells each event to the meter, to the log and to its listeners, in this order.

    Use cases tell after the commit. With a ``log_key`` a line names its recipient by a digest, the
    same in every process; without one not at all.
    """

    def __init__(
        self, *, log_key: str = "", meter: Meter | None = None, listeners: Iterable[Listener] = ()
    ) -> None:
        self._meter = meter
        self._digest = digest_with(log_key)
        self._listeners = tuple(listeners)

    def tell(self, kind: Transition, message: Message, **details: Fact) -> None:
        self.tell_of(kind, message.id, message.channel, message=message, **details)

    def tell_of(
        self,
        kind: Transition,
        message_id: UUID,
        channel: str,
        *,
        message: Message | None = None,
        **details: Fact,
    ) -> None:
        """Like :meth:`tell`, where only the id and the channel are at hand."""
        event = Event(kind, message_id, channel, details, message)
        if self._meter is not None:
            self.count(lambda meter: meter.on_event(event))
        if _lines.isEnabledFor(_LEVELS.get(kind, logging.INFO)):
            self._log(event)
        for listen in self._listeners:
            listen(event)

    def tell_all(self, kind: Transition, channels: Mapping[UUID, str]) -> int:
        """Tell of each of these messages; return how many they are."""
        for message_id, channel in channels.items():
            self.tell_of(kind, message_id, channel)
        return len(channels)

    def refused(self, error: DispatcherError) -> None:
        """Count a submit that was refused. The caller has the error, so no line is written."""
        reason = next((name for kind, name in _REASONS if isinstance(error, kind)), "other")
        quota = error.quota if isinstance(error, QuotaExceeded) else ""
        self.count(lambda meter: meter.refused(reason, quota))

    def count(self, call: Callable[[Meter], object]) -> None:
        """Count. A meter that cannot, its disk being full say, is asked no more."""
        if self._meter is None:
            return
        try:
            call(self._meter)
        except Exception:  # noqa: BLE001 - it is logged
            self._meter = None
            _lines.exception("metrics stopped in this process; restart it")

    def _log(self, event: Event) -> None:
        facts: dict[str, Fact] = {"channel": event.channel}
        if event.message is not None and self._digest is not None:
            facts["recipient"] = self._digest(event.message.recipient)
        facts |= {name: _plain(fact) for name, fact in event.details.items() if fact is not None}
        known = " ".join(f"{name}={fact}" for name, fact in facts.items())
        kind, message_id = event.kind.value, event.message_id
        record = facts | {"transition": kind, "message_id": str(message_id)}
        level = _LEVELS.get(event.kind, logging.INFO)
        _lines.log(level, "message %s %s %s", message_id, kind, known, extra=record)


def digest_with(log_key: str) -> Callable[[str], str] | None:
    """Return what makes the digest of a recipient. None without a key: it could be guessed."""
    if not log_key:
        return None
    key = hashlib.sha256(log_key.encode()).digest()

    def digest(recipient: str) -> str:
        text = recipient.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=key, digest_size=8).hexdigest()

    return digest


def _plain(fact: Fact) -> str | int | float | None:
    if isinstance(fact, datetime):
        return as_text(fact)
    if isinstance(fact, timedelta):
        return round(fact.total_seconds(), 3)
    return fact


# Listeners.

_COLLECT_SECONDS = 0.1
_AT_ONCE = 500
_MOST_FOR_HOOKS, _MOST_FOR_STREAM = 10_000, 50_000
"""Events that may wait."""
_BEGINNING = "0-0"
_AT_HAND = frozenset({Transition.SCHEDULED, Transition.RESCHEDULED})
"""Reported with the message that the statement returned: nothing is read."""
_OPEN = {Status.SCHEDULED, Status.SENDING}
_HOOKS: dict[Transition, tuple[str, Collection[Status]]] = {
    Transition.SCHEDULED: ("on_scheduled", [*Status]),
    Transition.RESCHEDULED: ("on_rescheduled", [*Status]),
    Transition.ENQUEUED: ("on_enqueued", _OPEN),
    Transition.SENT: ("on_sent", {Status.SENT}),
    Transition.RETRIED: ("on_retry", _OPEN),
    Transition.RELEASED: ("on_retry", _OPEN),
    Transition.RESCUED: ("on_retry", _OPEN),
    Transition.SNOOZED: ("on_snoozed", _OPEN),
    Transition.DELAYED: ("on_delayed", _OPEN),
    Transition.FAILED: ("on_failed", {Status.FAILED}),
    Transition.EXPIRED: ("on_expired", {Status.EXPIRED}),
    Transition.CANCELLED: ("on_cancelled", {Status.CANCELLED}),
    Transition.HELD: ("on_held", {Status.HELD}),
}
"""The hook of a transition, and the statuses of a message that has not moved on since.

A message that was enqueued, or is tried again, may be ``sending`` already.
"""
KNOWN = tuple(dict.fromkeys(name for name, _ in _HOOKS.values()))

Read = Callable[[Sequence[UUID]], Iterable[Message]]


class Backlog(Generic[T]):
    """Notifications that a thread of its own passes to ``work`` a moment later, in order.

    At most ``most`` wait, further ones are dropped. One that waits when its process dies is lost.
    """

    def __init__(self, name: str, work: Callable[[Sequence[T]], object], *, most: int) -> None:
        self._name = name
        self._work = work
        self._most = most
        self._waiting: deque[T] = deque()
        self._dropped = self._in_hand = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_filled, self._is_ending = threading.Event(), threading.Event()

    def add(self, item: T) -> None:
        if len(self._waiting) >= self._most:
            self._dropped += 1
            return
        self._waiting.append(item)
        with self._lock:
            if self._thread is None and not self._is_ending.is_set():
                self._thread = started(self._run, self._name)
        self._is_filled.set()

    def close(self, timeout: float = 2.0) -> None:
        """Pass on what waits, for so many seconds at most."""
        self._is_ending.set()
        self._is_filled.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
            if thread.is_alive():
                self._warn(len(self._waiting) + self._in_hand, "the process ended first")

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._is_filled.wait()
            is_last = self._is_ending.wait(_COLLECT_SECONDS)
            self._is_filled.clear()
            while self._waiting:
                self._in_hand = min(_AT_ONCE, len(self._waiting))
                items = [self._waiting.popleft() for _ in range(self._in_hand)]
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    self._warn(dropped, "too many waited")
                try:
                    self._work(items)
                except Exception as error:  # noqa: BLE001 - its thread must not end
                    is_ours = isinstance(error, DispatcherError)  # others may quote a body
                    self._warn(len(items), error if is_ours else type(error).__name__)

    def _warn(self, number: int, why: object) -> None:
        log.warning("%s: %d notifications dropped: %s", self._name, number, why)


def started(run: Callable[[], None], name: str) -> threading.Thread | None:
    """Return a thread that runs this, None where the system gives none now: try again later."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("the thread of the %s did not start, the next use tries again: %s", name, error)
        return None
    return thread


class Hooks:
    """Calls ``target.on_sent(message)`` and its like with messages as ``read`` returns them."""

    def __init__(self, target: object, *, read: Read) -> None:
        self._read = read
        self._calls = {
            name: getattr(target, name) for name in KNOWN if callable(getattr(target, name, None))
        }
        self._backlog = Backlog("hooks", self._call_all, most=_MOST_FOR_HOOKS)
        self.close = self._backlog.close

    def on_event(self, event: Event) -> None:
        """Call the hook of an event later, unless the message has changed again by then."""
        if _HOOKS[event.kind][0] not in self._calls:
            return
        if event.kind not in _AT_HAND:  # what is read later is not kept: its body may be long
            self._backlog.add(event._replace(message=None))
        elif event.message is not None:
            self._backlog.add(event)

    def _call_all(self, events: Sequence[Event]) -> None:
        unread = [event.message_id for event in events if event.kind not in _AT_HAND]
        try:
            read = {message.id: message for message in self._read(unread)} if unread else {}
        except StoreUnavailable as error:
            log.warning("hooks not called for %d messages: %s", len(unread), error)
            read = {}
        for event in events:
            message = event.message or read.get(event.message_id)
            name, statuses = _HOOKS[event.kind]
            if message is None or message.status not in statuses:
                continue
            try:
                self._calls[name](message)
            except BaseException as error:  # noqa: BLE001 - code of others may raise anything
                kind = type(error).__name__  # its text may quote the body
                log.error("message %s: hook %s raised %s", message.id, name, kind)  # noqa: TRY400 - same


def find_hooks(text: str) -> Any:
    """Return what the setting ``hooks`` names; a class is called. Raises InvalidSettings."""
    accepted = f"package.module:attribute of a class or an object with some of {', '.join(KNOWN)}"
    target = load_named("hooks", text, accepted)
    if inspect.isclass(target):
        try:
            target = target()
        except Exception as error:
            problem = f"cannot load {quoted(text)} ({type(error).__name__})"
            raise InvalidSettings("hooks", problem, accepted) from error
    strange = sorted({name for name in dir(target) if name.startswith("on_")} - {*KNOWN})
    if strange:
        raise InvalidSettings("hooks", f"{quoted(text)} has unknown {', '.join(strange)}", accepted)
    if not any(callable(getattr(target, name, None)) for name in KNOWN):
        raise InvalidSettings("hooks", f"{quoted(text)} has no hook", accepted)
    return target


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
        self._backlog = Backlog("events", self._write, most=_MOST_FOR_STREAM)
        self.close = self._backlog.close

    def on_event(self, event: Event) -> None:
        if event.kind not in _OFTEN:
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
