"""Time travel: a dispatcher whose time a test moves, and what it has sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar, overload
from uuid import uuid4
from weakref import WeakSet

from redis import Redis
from redis.asyncio import Redis as AwaitedRedis

from dispatcher.client import Dispatcher
from dispatcher.errors import DispatcherError, InvalidValue, QuietHours, QuotaExceeded, quoted
from dispatcher.message import Body, Message, Status, without_collector
from dispatcher.quota import parse_quota
from dispatcher.selection import Selection
from dispatcher.settings import Settings
from dispatcher.testing.app import TestApp, empty_database, new_database, servers
from dispatcher.testing.clock import RedisTime, TravelClock, sql_time
from dispatcher.times import send_time
from dispatcher.times.clock import SystemClock

T = TypeVar("T")

_SHOWN = 20
_FIELDS = sorted({"at", *(field.name for field in fields(Message))})
_SENDING = Selection(status=Status.SENDING)
_PRUNE_EVERY = timedelta(hours=1)
_OPEN = WeakSet["MemoryDispatcher"]()
_LONGEST = timedelta(days=3 * 366)
"""Until when ``until_idle`` plays: longer than any message may be scheduled ahead and retried."""


class Sent(NamedTuple):
    """A message as its transport got it, and when."""

    channel: str
    recipient: str
    body: Body
    at: datetime
    message: Message


class _FailedTest(BaseException):
    """An assertion failed inside a send. Deliveries take only an Exception for a failed attempt."""


class Outbox(list[Sent]):
    """What was sent, on all channels, in order.

    Set ``before`` to a function that raises TemporaryFailure, PermanentFailure or PerhapsSent to
    see failures handled; it is called with each message before it counts as sent. An AssertionError
    comes out of the call that moves the time.
    """

    def __init__(self, clock: TravelClock) -> None:
        super().__init__()
        self.before: Callable[[Message], object] | None = None
        self._clock = clock

    def send(self, message: Message) -> str | None:
        """Take a message, as a transport does."""
        if self.before is not None:
            try:
                self.before(message)
            except AssertionError as error:
                raise _FailedTest(error) from error
        self.append(
            Sent(message.channel, message.recipient, message.body, self._clock.now(), message)
        )
        return f"outbox-{len(self)}"


class Travel:
    """Moves the time of a dispatcher, and plays what workers and the sweep do meanwhile.

    Each message is sent at the instant at which it is due, at once and one after the other: a send
    takes no time. Nothing else moves: ``datetime.now()`` stays what it is.
    """

    def __init__(self, app: TestApp, clock: TravelClock, redis_time: RedisTime) -> None:
        self._app = app
        self.clock = clock
        """The clock of the dispatcher, which is moved here, for a limiter: ``on(…, clock=…)``."""
        self._redis_time = redis_time
        self._swept_at = clock.now() - app.settings.sweep_interval
        self._prune_at = clock.now() + _PRUNE_EVERY
        self._is_broken_off = False

    @property
    def now(self) -> datetime:
        """The present of the dispatcher, aware UTC."""
        return self.clock.now()

    def redis(self) -> Redis:
        """Return a new client of the Redis of tests, whose scripts go by this time."""
        return self._redis_time.client()

    def awaited_redis(self) -> AwaitedRedis:
        """Return a new client of ``redis.asyncio``, whose scripts go by this time."""
        return self._redis_time.awaited_client()

    def __call__(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        to: datetime | str | None = None,
    ) -> datetime:
        """Let so much time pass, or all until an instant ``to``, not both; return the present then.

        An instant is an aware datetime or a text with an offset. Raises InvalidValue for one that
        is past, RuntimeError for a dispatcher that is closed, what a transport raises that is no
        Exception, and an AssertionError of ``outbox.before``.
        """
        instant = None if to is None else send_time.parse(to, field="to")
        try:
            length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
            until = instant or self.now + length
        except (OverflowError, ValueError):  # ValueError: not a number
            accepted = "one that ends before the year 10000"
            raise InvalidValue("length", "is out of range", accepted) from None
        if instant and length:
            raise InvalidValue("to", "given with a length", "a length, or an instant alone")
        if until < self.now:
            raise InvalidValue("to", f"{until.isoformat()} is past", f"from {self.now.isoformat()}")
        self._play(until)
        self.clock.move_to(until)
        self._prune()
        return self.now

    def until_idle(self) -> datetime:
        """Let time pass until no message is left to be sent; return the present then.

        Messages end as sent, failed, expired or cancelled, or are held. Raises AssertionError where
        some are still left after three years, as of a series that does not end.
        """
        until = self.now + _LONGEST
        self._play(until)
        if self._next(self._app.next_to_sweep()) is not None:
            raise AssertionError(f"messages are still left at {until.isoformat()}")
        self._prune()
        return self.now

    def _prune(self) -> None:
        """Delete ended messages at the end of a journey, as far as one is long enough."""
        if self.now >= self._prune_at:
            self._app.sweep.prune()
            self._prune_at = self.now + _PRUNE_EVERY

    @without_collector()
    def _play(self, until: datetime) -> None:
        app, queue, clock = self._app, self._app.queue, self.clock
        if self._swept_at < clock.now():
            self._sweep()  # what callers have changed since
        while True:
            waiting = app.next_to_sweep()
            at = self._next(waiting)
            if at is None or at > until:
                return
            clock.move_to(at)
            if self._is_broken_off or (waiting is not None and waiting <= at):
                self._sweep()
            while (begins_at := queue.next_at()) is not None and begins_at <= clock.now():
                task = queue.take()
                try:
                    app.delivery.deliver(task.message_ids)
                except BaseException as raised:
                    self._is_broken_off = True  # its messages are to be rescued
                    if isinstance(raised, _FailedTest):
                        raise raised.args[0] from None
                    raise
            if not app.is_settled or app.notifications is not None:
                self._sweep()

    def _next(self, waiting: datetime | None) -> datetime | None:
        """Return when something happens next; ``waiting``: when the sweep has something to do."""
        queued = self._app.queue.next_at()
        if waiting is not None and waiting <= self._swept_at:
            waiting = self._swept_at + self._app.settings.sweep_interval  # the sweep left it
        instants = [instant for instant in (queued, waiting) if instant is not None]
        if self._is_broken_off:
            instants.append(self._swept_at + self._app.settings.sweep_interval)
        return min(instants, default=None)

    def _sweep(self) -> None:
        app = self._app
        self._swept_at = self.now
        if self._is_broken_off:
            app.sweep.rescue()
            self._is_broken_off = app.listing.count(_SENDING) > 0
        app.series_list.book_ahead()
        app.sweep.catch_up()
        app.sweep.enqueue_due()
        if app.needs_reconcile():
            app.reconciler.reconcile()
        if app.sweep.notify():
            app.sweep.enqueue_due()
        app.is_settled = True


class MemoryDispatcher(Dispatcher):
    """A dispatcher of a test: ``travel`` moves its time, ``outbox`` has what it sent.

    All is real but the broker, which lies in this process, and the transports: no one but the
    outbox is called, on the thread that moves the time. It has a new SQLite database and an empty
    Redis (``pip install 'quota-dispatcher[embedded]'``), which are of this process alone. With
    ``database_url`` it uses that database instead, which is migrated, and in which **all rows of
    the dispatcher's tables are deleted**.

    ``settings`` are by default those of the environment and ``dispatcher.toml``; their addresses of
    servers are ignored. It begins at ``start``, by default the present, in whole seconds. The waits
    before retries are drawn from ``seed``. Raises InvalidValue for a ``start`` that is no aware
    datetime, EmbeddedUnavailable where there is no Redis to start, and StoreUnavailable.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        start: datetime | None = None,
        seed: int = 0,
        database_url: str | None = None,
    ) -> None:
        if start is None:
            start = SystemClock().now().replace(microsecond=0)
        if not isinstance(start, datetime) or start.utcoffset() is None:
            raise InvalidValue("start", quoted(start), "an aware datetime")
        clock = TravelClock(start.astimezone(UTC))
        super().__init__(settings, clock=clock)
        self.outbox = Outbox(clock)
        self._parts = ExitStack()
        self.settings = _settings_of_test(self.settings, database_url)
        redis_time = RedisTime(servers().socket, clock.now)
        if not _OPEN:
            with redis_time.client() as client:
                client.flushall()  # keys of limiters, too, which have no namespace
        _OPEN.add(self)
        self._parts.enter_context(sql_time(self.settings.database_url, clock.now))
        if database_url is not None:
            empty_database(self.settings)
        app = TestApp(self.settings, clock, transport=self.outbox, redis_time=redis_time, seed=seed)
        self._app: TestApp = app
        if (rebuild := app.upkeep.begin()) is not None:
            app.upkeep.open(rebuild)
        self.travel = Travel(app, clock, redis_time)

    def close(self) -> None:
        """Close it. Every later call raises RuntimeError, also one that moves the time."""
        super().close()
        self.travel._app = self._app
        self._parts.close()
        _OPEN.discard(self)

    @property
    def refused(self) -> list[DispatcherError]:
        """The errors of all submits that were refused, in order."""
        return self._app.refused

    def assert_scheduled(self, **fields: Any) -> Message:
        """Return the one message that is scheduled and matches; else raise AssertionError.

        ``fields`` have values of a message, as in ``recipient="ada"``, and ``at``: the promised
        time, aware or a text with an offset. Raises TypeError for another name.
        """
        scheduled = [
            (message, message, message.send_at) for message in self.select(status=Status.SCHEDULED)
        ]
        return _the_one("scheduled", fields, scheduled, [*self.select(oldest_first=True)])

    def assert_sent(self, **fields: Any) -> Sent:
        """Return the one send that matches; else raise AssertionError.

        As :meth:`assert_scheduled`, but ``at`` is the instant of the send.
        """
        sends = [(sent, sent.message, sent.at) for sent in self.outbox]
        return _the_one("sent", fields, sends, self.outbox)

    @overload
    def assert_refused(
        self, *, quota: str | None = None, scope: str | None = None
    ) -> QuotaExceeded: ...
    @overload
    def assert_refused(self, *, quiet_hours: Literal[True]) -> QuietHours: ...
    def assert_refused(
        self, *, quota: str | None = None, scope: str | None = None, quiet_hours: bool = False
    ) -> QuotaExceeded | QuietHours:
        """Return the last refusal of a submit by a quota or by quiet hours that matches.

        ``quota`` is written as in the settings, such as ``"5/hour"``, ``scope`` as in the error.
        Raises AssertionError where no submit was refused so.
        """
        for error in reversed(self.refused):
            if quiet_hours and isinstance(error, QuietHours):
                return error
            if (
                isinstance(error, QuotaExceeded)
                and not quiet_hours
                and (quota is None or str(parse_quota(quota)) == error.quota)
                and scope in (None, error.scope)
            ):
                return error
        filters = {"quota": quota, "scope": scope, "quiet_hours": quiet_hours or None}
        raise AssertionError(_report("refused", filters, 0, self.refused))


def _settings_of_test(settings: Settings, database_url: str | None) -> Settings:
    """Return settings that lead to the servers of this process."""
    at = servers()
    changed = {
        "redis_url": f"unix://{at.socket}",
        "broker_url": "memory://",
        "data_dir": at.folder,
        "namespace": f"t{uuid4().hex}",
        "horizon": settings.max_horizon,  # the queue of a test keeps a task for as long as it likes
        "database_url": database_url or new_database(settings),
        "channels": {
            name: channel.model_copy(update={"senders": 1})
            for name, channel in settings.channels.items()
        },
    }
    if database_url is None:
        changed["table_schema"] = ""
    return settings.model_copy(update=changed)


def _the_one(
    status: str,
    filters: Mapping[str, Any],
    items: Sequence[tuple[T, Message, datetime]],
    there: Sequence[object],
) -> T:
    """Return the one item whose message and instant are those of the filters."""
    for name in filters:
        if name not in _FIELDS:
            raise TypeError(f"a message has no field {name!r}; accepted: {', '.join(_FIELDS)}")
    values = dict(filters)
    at = values.pop("at", None)
    instant = None if at is None else send_time.parse(at, field="at")
    matches = [
        item
        for item, message, when in items
        if instant in (None, when)
        and all(getattr(message, name) == value for name, value in values.items())
    ]
    if len(matches) != 1:
        raise AssertionError(_report(status, filters, len(matches), there))
    return matches[0]


def _report(status: str, filters: Mapping[str, Any], count: int, there: Sequence[object]) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in filters.items() if value is not None)
    lines = [f"{count or 'nothing'} {status} with {fields or 'any fields'}; there is:"]
    lines += [f"  {_line(item)}" for item in there[-_SHOWN:]] or ["  nothing"]
    return "\n".join(lines)


def _line(item: object) -> str:
    if isinstance(item, Sent):
        return f"sent {item.at.isoformat()} {item.channel} to {item.recipient}: {item.body}"
    if isinstance(item, Message):
        error = f" ({item.last_error})" if item.last_error else ""
        return f"{item.status} {item.send_at.isoformat()} {item.channel} to {item.recipient}{error}"
    return f"{type(item).__name__}: {item}"
