"""The client: submit messages, look them up, change and cancel them."""

from __future__ import annotations

import asyncio
from asyncio import wrap_future
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial, wraps
from itertools import islice
from threading import Lock
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from uuid import UUID
from weakref import WeakKeyDictionary, WeakSet

from dispatcher.app import App
from dispatcher.delivery.reconciler import OnRows
from dispatcher.errors import DispatcherError, InvalidDraft, InvalidValue, kind_of, plain, quoted
from dispatcher.forks import renew_after_fork
from dispatcher.message import (
    Attempt,
    Draft,
    Message,
    OnConflict,
    OnUnknown,
    Plan,
    Status,
    check_recipient,
    check_text,
    new_id,
    scope_name,
)
from dispatcher.operations.overview import By, LoadToCome, Overview, Tops
from dispatcher.operations.verification import Verified
from dispatcher.reservation.refusals import Refusals
from dispatcher.reservation.timeline import Timeline
from dispatcher.scope import of_channel, of_scope_on
from dispatcher.selection import Page, Selection, Wanted, id_of, ids_of
from dispatcher.settings import Settings
from dispatcher.store.listing import Of
from dispatcher.store.lists import Pause, Suppression
from dispatcher.store.outbox import connection_of, session_of_loop
from dispatcher.store.schema import Event
from dispatcher.submission.changes import NewTime
from dispatcher.submission.events import Past
from dispatcher.submission.lists import Erased
from dispatcher.submission.pipeline import LazyResults, OnProgress, Result
from dispatcher.submission.quotas import ScopeQuotas
from dispatcher.submission.reads import Story
from dispatcher.submission.series import Conflict, Missed, Recipient, Series
from dispatcher.submission.validation import checked_scopes, known_channel, own_hours, terms_for
from dispatcher.times import send_time
from dispatcher.times.clock import Clock
from dispatcher.times.recurrence import Gap, Repeat

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    from dispatcher.body_types import AnyBody, BodyOfChannel, Channel

P = ParamSpec("P")
T = TypeVar("T")
Self_ = TypeVar("Self_", bound="Dispatcher | Events | SeriesCalls")
SendTime = datetime | str

_MOST_FOUND = 10_000
_PAGE = 500
_MOST_AWAITED = 4
"""With more, the loop waits longer for the interpreter's lock."""
_MOST_BEGUN = 2 * _MOST_AWAITED
"""As many calls wait for a thread as run, so that no thread waits for the loop."""


def awaited(
    call: Callable[Concatenate[Self_, P], T],
) -> Callable[Concatenate[Self_, P], Coroutine[Any, Any, T]]:
    """Return a call as a coroutine function with the same parameters, result and errors.

    It runs in a thread, in the caller's context; with a ``session``, an AsyncSession or an
    AsyncConnection, its statements run in the loop.
    """

    @wraps(call)
    async def waits(self: Self_, /, *args: P.args, **kwargs: P.kwargs) -> T:
        session = kwargs.get("session")
        dispatcher = self if isinstance(self, Dispatcher) else self.dispatcher
        if session is None:
            work = partial(call, self, *args, **kwargs)
            async with dispatcher._turn(None, _MOST_BEGUN):
                return await wrap_future(dispatcher._in_thread(work))

        def joins(of_loop: object) -> T:
            # A call waits for its connection before it has a thread: so there are never more
            # threads of such calls than connections of the caller's.
            connection_of(of_loop)
            kwargs["session"] = of_loop
            return call(self, *args, **kwargs)

        in_loop = session_of_loop(session)
        async with dispatcher._turn(session, 1):
            with dispatcher._joining():
                return await in_loop.run_sync(joins)

    waits.__doc__ = f"Await :meth:`{getattr(call, '__name__', 'call')}`, which runs in a thread."
    return waits


def streamed(
    call: Callable[Concatenate[Dispatcher, P], Iterator[T]],
) -> Callable[Concatenate[Dispatcher, P], AsyncIterator[T]]:
    """Return a call that yields as one that is read with ``async for``, in threads."""

    @wraps(call)
    async def reads(self: Dispatcher, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        rows = await awaited(call)(self, *args, **kwargs)
        while page := await awaited(_page_of)(self, rows):
            for row in page:
                yield row

    reads.__doc__ = f"Yield as :meth:`{getattr(call, '__name__', 'call')}`, for ``async for``."
    return reads


def _page_of(_: Dispatcher, rows: Iterator[T]) -> list[T]:
    return [*islice(rows, _PAGE)]


def listed(call: Callable[P, Iterable[T]]) -> Callable[P, list[T]]:
    """Return ``call`` with its whole result as a list."""

    @wraps(call)
    def reads(*args: P.args, **kwargs: P.kwargs) -> list[T]:
        return [*call(*args, **kwargs)]

    return reads


class Events:
    """What messages remind of: the calls of ``dispatcher.events``. An unknown one is InvalidDraft.

    A message that was given another time by hand keeps that: no move of its event changes it.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def set(self, name: str, at: SendTime, zone: str | None = None) -> Event:
        """Set a new event, at most 128 characters; another call with the same time returns it.

        ``at`` is as ``send_at`` of :meth:`Dispatcher.submit`. Offsets by the calendar count in
        ``zone``, by default that of the settings. Raises InvalidDraft where it has another time, or
        was cancelled.
        """
        return self.dispatcher._app.event_list.set(name, at, zone)

    def get(self, name: str) -> Event:
        """Return an event."""
        return self.dispatcher._app.event_list.get(name)

    def move(
        self,
        name: str,
        at: SendTime,
        zone: str | None = None,
        *,
        on_conflict: OnConflict = "reject",
        past: Past = "refuse",
    ) -> Event:
        """Move an event and all its scheduled messages, in one step or not at all. Return it.

        Each message stands at its offset from the new time then, also one that is submitted
        meanwhile; one that is being sent, or has ended, stays as it is. ``zone`` is by default that
        of the event. A message whose new time is past is refused, and so the whole move; with
        ``past="cancel"`` it is cancelled, with ``past="now"`` it is due now. ``on_conflict`` is as
        for :meth:`Dispatcher.submit`. Raises what :meth:`Dispatcher.reschedule` raises for the
        first message that is refused: nothing has changed then. After StoreUnavailable the event
        has the old time or the new one, and so have all its messages.
        """
        return self.dispatcher._app.event_list.move(name, at, zone, on_conflict, past)

    def cancel(self, name: str) -> Event:
        """Cancel an event and its scheduled messages, in one step. Return it.

        Later submits with it are refused. Another call changes nothing.
        """
        return self.dispatcher._app.event_list.cancel(name)

    aset = awaited(set)  # noqa: A003 - the method
    aget = awaited(get)
    amove = awaited(move)
    acancel = awaited(cancel)


class SeriesFields(TypedDict, total=False):
    """The fields of a series beside its rule and channel. One that is None has its default.

    It is for one ``recipient``, or for ``recipients``: addresses or
    :class:`~dispatcher.Recipient`, at most 10,000, or a name in the setting ``series_recipients``.
    ``zone`` is by default that of the settings, and ``"local"`` is that of each recipient.
    ``start``, by default this minute, and ``until`` are datetimes or texts in ISO 8601, without an
    offset by the clocks of ``zone``; ``until`` or ``count`` (occurrences) end a rule that does not
    end itself. Where clocks skip the time of an occurrence, ``gap`` says when it is (``"after"``:
    as much later), where they show it twice ``repeat`` (``"first"``).

    ``spread``, a timedelta or ``"30 minutes"``, moves each recipient by a length of its own below
    it. An occurrence that does not fit a quota is left out (``conflict="skip"``), or takes the next
    slot, at most ``window`` later (``"shift"``); with ``"refuse"`` such a series is refused, and
    later ones are left out. Of occurrences that nobody booked in time ``missed`` books the
    ``"last"``, ``"all"`` of the setting ``series_catch_up``, or ``"none"``.
    The others are those of :meth:`Dispatcher.submit`.
    """

    recipient: str | None
    recipients: Iterable[str | Recipient | Sequence[Any]] | str | None
    body: Mapping[str, Any] | None
    template: str | None
    data: Mapping[str, Any] | None
    start: SendTime | None
    until: SendTime | None
    count: int | None
    zone: str | None
    gap: Gap | None
    repeat: Repeat | None
    spread: timedelta | str | None
    conflict: Conflict | None
    window: timedelta | str | None
    missed: Missed | None
    scope: str | None
    scopes: Mapping[str, str] | None
    quiet_hours: str | None
    send_window: str | None
    on_unknown: OnUnknown | None
    expire_after: timedelta | None
    status_url: str | None
    campaign: str | None
    priority: int | None
    quotas: Literal["none"] | None


class SeriesCalls:
    """Messages that repeat by a rule: the calls of ``dispatcher.series``.

    Occurrences are ordinary messages, of the event ``series:<name>``. The sweep, which beat runs,
    books them within a second of the call for the length of the setting ``book_ahead``, and each
    later one when it comes that near: exactly one message for each, whatever process dies. From
    then on they hold their places. One that was moved, cancelled or changed by hand is not booked
    again.

    A call with a name that no series has raises InvalidValue.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def add(self, name: str, rule: str, *, channel: str, **fields: Unpack[SeriesFields]) -> Series:
        """Add a series, with a name of at most 100 characters; the same one again is returned.

        ``rule`` is an RRULE of RFC 5545, or lines of RRULE, RDATE and EXDATE, or cron of five
        fields (``"0 9 * * mon-fri"``). Raises InvalidValue for a field, for a name that a
        different series has, and for a rule that never fires or is denser than a quota; what
        :meth:`Dispatcher.submit` raises for the first message of a recipient, but not for its time;
        and QuotaExceeded or QuietHours with ``conflict="refuse"``.
        """
        return self.dispatcher._app.series_list.add(
            name, {"rule": rule, "channel": channel, **fields}
        )

    def get(self, name: str) -> Series:
        """Return a series."""
        return self.dispatcher._app.series_list.get(name)

    def change(
        self,
        name: str,
        since: SendTime | date | None = None,
        *,
        rule: str | None = None,
        channel: str | None = None,
        **fields: Unpack[SeriesFields],
    ) -> Series:
        """Change the occurrences from ``since`` on, by default all that are to come.

        Scheduled messages from then on are cancelled, and booked anew within a second, also those
        that were moved by hand; a place that another message takes meanwhile is lost. What comes
        within half a minute, or the setting ``horizon`` where that is shorter, stays, and ``since``
        may lie up to the end of ``book_ahead``.
        Fields that are not named stay; ``until`` and ``count`` need the ``rule``. Raises like
        :meth:`add`, and StoreUnavailable where another call has changed it meanwhile.
        """
        named = {"rule": rule, "channel": channel}
        changes = {field: value for field, value in named.items() if value is not None} | fields
        return self.dispatcher._app.series_list.change(name, changes, since)

    def remove(self, name: str) -> int:
        """End a series: cancel its scheduled messages, and return how many those were.

        Where the process dies meanwhile, the sweep cancels the others.
        """
        return self.dispatcher._app.series_list.remove(name)

    def pause(self, name: str) -> None:
        """Send nothing of a series until it is resumed. Its messages keep their places."""
        self.dispatcher._app.series_list.pause(name)

    def resume(self, name: str) -> int:
        """End a pause. Return how many messages were missed, and are cancelled: see ``missed``."""
        return self.dispatcher._app.series_list.resume(name)

    def preview(self, name: str, count: int = 10, zone: str | None = None) -> list[datetime]:
        """Return the next instants by the rule, at most 10,000: no quota or ``spread`` counts.

        ``zone`` is that of a recipient, for a series in ``"local"``.
        """
        _check_limit(count, "count")
        return self.dispatcher._app.series_list.preview(name, count, plain(zone))

    def list(self, *, limit: int = 1_000, after: str | None = None) -> list[Series]:
        """Return series in the order of their names, at most 10,000.

        ``after`` is the name of the last one of the page before.
        """
        _check_limit(limit)
        return [*islice(self.dispatcher._app.series_list.all(after), limit)]

    aadd = awaited(add)
    aget = awaited(get)
    achange = awaited(change)
    aremove = awaited(remove)
    apause = awaited(pause)
    aresume = awaited(resume)
    apreview = awaited(preview)
    alist = awaited(list)  # noqa: A003 - the method


class Dispatcher:
    """Submits messages, looks them up, changes and cancels them.

    ``settings`` default to those of the environment and ``dispatcher.toml``; see
    :class:`~dispatcher.settings.Settings`. Nothing connects before the first call. One instance
    may be shared by threads, and by processes that fork: a child has connections of its own. Use it
    as a context manager, or call :meth:`close`; in a coroutine with ``async with``, or
    :meth:`aclose`. A closed one is not opened again: its calls raise RuntimeError.

    A call with the id of a message raises MessageNotFound where there is none. One that is given
    ``if_unchanged``, a message as it was read, raises MessageChanged where the message is not equal
    to that any more, and changes nothing. Any call raises StoreUnavailable where the database does
    not answer; ReservationsUnavailable means that Redis is down or incomplete.
    """

    def __init__(self, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        if not (settings is None or isinstance(settings, Settings)):
            raise InvalidValue("settings", kind_of(settings), "Settings, as from Settings.load()")
        self.settings = settings if settings is not None else Settings.load()
        self._app = App(self.settings, clock)
        self._is_closed = False
        self._renew()
        renew_after_fork(self, Dispatcher._renew)

    def _renew(self) -> None:
        """Begin without threads and locks; a forked child calls it. No calls are under way then."""
        self._threads = _threads(_MOST_AWAITED)
        self._joined = WeakSet[Future[None]]()
        self._lent = WeakSet[ThreadPoolExecutor]()
        self._state_lock = Lock()
        self._turns: dict[
            asyncio.AbstractEventLoop, WeakKeyDictionary[object, asyncio.Semaphore]
        ] = {}

    def close(self) -> None:
        """Wait for awaited calls under way, then close the connections. May be called twice.

        It waits for calls of the HTTP API and of the page, too, also for those given up. Every
        later call raises RuntimeError, and so does an iterator of messages that is read on.
        """
        with self._state_lock:
            self._is_closed = True  # else a call could begin in threads that are being shut down
            joined, lent = [*self._joined], [*self._lent]
        for threads in (self._threads, *lent):
            threads.shutdown()
        wait(joined)
        app, self._app = self._app, cast("App", _ClosedApp())
        app.close()

    async def aclose(self) -> None:
        """Close without blocking the loop. ``async with`` does so, too."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _turn(self, session: object, most: int) -> asyncio.Semaphore:
        """Return what lets ``most`` awaited calls of this loop, or of a session in it, begin.

        The others wait in the loop: giving each to the threads at once would hold it for long.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._turns:  # a semaphore that was waited for holds its loop for ever
            for closed in [known for known in list(self._turns) if known.is_closed()]:
                self._turns.pop(closed, None)
        turns = self._turns.setdefault(loop, WeakKeyDictionary())
        return turns.setdefault(loop if session is None else session, asyncio.Semaphore(most))

    def _in_thread(self, work: Callable[[], T]) -> Future[T]:
        with self._state_lock:
            check_open(self)
            return self._threads.submit(copy_context().run, called, work)

    @contextmanager
    def _joining(self) -> Iterator[None]:
        """Let :meth:`close` wait for a call in a caller's transaction."""
        running = Future[None]()
        with self._state_lock:
            check_open(self)
            self._joined.add(running)
        try:
            yield
        finally:
            running.set_result(None)

    def _while_open(self, rows: Iterable[T]) -> Iterator[T]:
        """Yield them until this is closed, then raise RuntimeError: what is read would connect."""
        source = iter(rows)
        while not isinstance(self._app, _ClosedApp):
            try:
                row = next(source)
            except StopIteration:
                return
            yield row
        raise _closed()

    @property
    def events(self) -> Events:
        """The events that messages remind of: set, move and cancel them."""
        return Events(self)

    @property
    def series(self) -> SeriesCalls:
        """The series: messages that repeat by a rule."""
        return SeriesCalls(self)

    # Submit.

    def submit(
        self,
        channel: str | Channel[BodyOfChannel],
        *,
        recipient: str,
        body: BodyOfChannel | None = None,
        template: str | None = None,
        data: Mapping[str, Any] | None = None,
        send_at: SendTime | None = None,
        send_in: timedelta | None = None,
        zone: str | None = None,
        fold: int | None = None,
        scope: str | None = None,
        idempotency_key: str | None = None,
        expires_at: SendTime | None = None,
        on_conflict: OnConflict = "reject",
        latest: SendTime | None = None,
        scopes: Mapping[str, str] | None = None,
        quiet_hours: str | None = None,
        send_window: str | None = None,
        on_unknown: OnUnknown | None = None,
        expire_after: timedelta | None = None,
        status_url: str | None = None,
        campaign: str | None = None,
        priority: int | None = None,
        quotas: Literal["none"] | None = None,
        event: str | None = None,
        offset: timedelta | str | None = None,
        event_at: SendTime | None = None,
        session: Session | Connection | AsyncSession | AsyncConnection | None = None,
    ) -> Message:
        """Accept a message for a future time, if it fits every quota. Return it.

        Once this returns, the message ends as sent, failed, expired or cancelled, or is held,
        whatever process dies. When it raises, nothing is reserved or stored (except
        OutcomeUnknown).

        With ``session``, a SQLAlchemy Session or Connection on the dispatcher's database, the
        message is stored in its transaction: it commits or rolls back with the caller's own rows,
        and the promise above applies from the commit on. Its reservation is released on rollback;
        it is enqueued after the commit. An AsyncSession or an AsyncConnection is for
        :meth:`asubmit`. See docs/submitting.md.

        Args:
            channel: The name of a channel of the settings, or a :class:`~dispatcher.Channel`, which
                says of what type the ``body`` is.
            recipient: The address, as the channel's transport reads it: at most 255 characters,
                a URL 2,048.
            body: The content, a JSON object or a value of the channel's type. It is this or
                ``template``. The type of the channel, and that of its settings, validate either.
            template: A template of the channel, rendered now.
            data: The values for ``template``.
            send_at: An aware datetime, an ISO 8601 string with an offset, or a local time (string
                or naive datetime) with ``zone``. It is this or ``send_in``.
            send_in: How long from now.
            zone: The recipient's zone, for local times, quotas ``in local`` and quiet hours.
                Default, but for local times: the setting ``zone``.
            fold: 0 or 1: which one of a local time that clocks repeat.
            scope: The scope that the message counts against. Default: the recipient.
            idempotency_key: A repeated call with it returns the message of the first one, unless
                that ended without being sent: then it submits a new one.
            expires_at: The instant from which on the message is not sent any more.
            on_conflict: ``"reject"`` refuses a time that does not fit. ``"shift"`` books the first
                slot that fits every quota outside quiet hours.
            latest: The latest slot for ``"shift"``.
            scopes: Further scopes by kind, as in ``{"tenant": "acme"}``.
            quiet_hours: ``"21:00-08:00"``, or ``"none"``. Default: those of the channel.
            send_window: ``"mon-fri 09:00-17:00"``: all other times are quiet.
            on_unknown: After an attempt with an unknown outcome ``"retry"`` makes another one, and
                ``"hold"`` waits for :meth:`release` or :meth:`drop`. Default: the channel's.
            expire_after: The length after its time from which on it is not sent any more. It is
                this or ``expires_at``.
            status_url: Gets a POST, at least once, when the message is sent, failed, expired,
                cancelled or held; at most 2,048 characters. See docs/transports.md.
            campaign: A label by which messages are found together; at most 64 characters.
            priority: -100 to 100; where a limit is short, a larger one goes first. Default: the
                channel's.
            quotas: ``"none"``: no quota counts or refuses it, where ``without_quotas`` of the
                channel allows that.
            event: The event that it reminds of, instead of a time: it goes out ``offset`` from
                that, and follows its moves. See docs/series.md.
            offset: A timedelta or ``"-24 hours"``, elapsed time; or ``"-1 day"``, ``"2 weeks"``,
                ``"-1 month"``, which keep the wall time of the event. Default: none.
            event_at: When the event is, where it may be a new one; as ``send_at``.
            session: A SQLAlchemy Session or Connection: see above.

        Raises:
            InvalidDraft: A parameter was refused.
            InvalidSendTime: The time cannot be read, is past, or too far away.
            UnknownChannel: The settings do not have the channel.
            Suppressed: The recipient has opted out.
            QuotaExceeded: A quota is full around the time. It carries the next slot.
            QuietHours: The time lies in quiet hours. It carries the next slot.
            IdempotencyConflict: The key belongs to a message with other content.
            ReservationsUnavailable: Redis is down, incomplete, evicting or full.
            StoreUnavailable: The database did not store the message.
            OutcomeUnknown: The connection broke; the message may have been stored.

        """
        draft = Draft(
            channel=channel,
            recipient=recipient,
            body=body,
            template=template,
            data=data,
            send_at=send_at,
            send_in=send_in,
            zone=zone,
            fold=fold,
            scope=scope,
            idempotency_key=idempotency_key,
            expires_at=expires_at,
            on_conflict=on_conflict,
            latest=latest,
            scopes=scopes,
            quiet_hours=quiet_hours,
            send_window=send_window,
            on_unknown=on_unknown,
            expire_after=expire_after,
            status_url=status_url,
            campaign=campaign,
            priority=priority,
            quotas=quotas,
            event=event,
            offset=offset,
            event_at=event_at,
        )
        return self._submit(draft, session)

    def _submit(self, draft: Draft, session: object) -> Message:
        app = self._app
        sink = app.own_transaction if session is None else app.callers_transactions.of(session)
        return app.submitter.submit(draft, sink).answer()

    @overload
    def submit_many(
        self,
        drafts: Sequence[Draft],
        *,
        on_conflict: OnConflict | None = None,
        atomic: bool = False,
        progress: OnProgress | None = None,
    ) -> list[Result]: ...
    @overload
    def submit_many(
        self,
        drafts: Iterable[Draft],
        *,
        on_conflict: OnConflict | None = None,
        atomic: bool = False,
        progress: OnProgress | None = None,
    ) -> Iterable[Result]: ...
    def submit_many(
        self,
        drafts: Iterable[Draft],
        *,
        on_conflict: OnConflict | None = None,
        atomic: bool = False,
        progress: OnProgress | None = None,
    ) -> Iterable[Result]:
        """Submit many drafts in batches; return a Message or a Rejection for each, in order.

        A refused draft becomes a Rejection with the error that :meth:`submit` would raise. Earlier
        drafts count for later ones of the same scope. For a list or tuple the result is a list, for
        any other iterable an iterator that submits while it is read, with one batch in memory.

        Args:
            drafts: What :meth:`submit` takes, as values.
            on_conflict: Replaces that of every draft.
            atomic: All are accepted or none; all are in memory together.
            progress: Called with a Progress after each batch.

        Raises:
            ReservationsUnavailable: Earlier batches are accepted, of the current batch some drafts
                may be. If the drafts have idempotency keys, a second run completes the first one.
            StoreUnavailable: Likewise.

        """
        submitted = _overridden(drafts, on_conflict)
        total = len(drafts) if isinstance(drafts, Sized) else None
        if atomic:
            submitted = list(submitted)
            total = len(submitted)
        submit_many = partial(self._app.submitter.submit_many, total=total, progress=progress)
        if atomic or isinstance(drafts, Sequence):
            return list(submit_many(submitted, atomic=atomic))
        return LazyResults(submit_many(self._while_open(submitted)))

    def plan(
        self,
        drafts: Iterable[Draft],
        *,
        on_conflict: OnConflict | None = None,
        progress: OnProgress | None = None,
    ) -> Plan:
        """Return the result that :meth:`submit_many` would have now. Books and stores nothing.

        The parameters are those of :meth:`submit_many`. Earlier drafts count for later ones, as do
        the reservations of a scope when it is first read. Other submits may take the capacity
        meanwhile. One batch, keys and refused drafts are in memory. Raises ReservationsUnavailable.
        """
        total = len(drafts) if isinstance(drafts, Sized) else None
        planned = _overridden(drafts, on_conflict)
        return self._app.submitter.plan(planned, total=total, progress=progress)

    # Change accepted messages. The row decides every race.

    def cancel(self, message_id: UUID | str, *, if_unchanged: Message | None = None) -> Message:
        """Cancel a scheduled message; its quota is free again at once. Return it.

        Once this returns, the message is never sent. Another call changes nothing. Raises TooLate
        where it is being sent, is held or has ended.
        """
        return _only(self._app.cancellation.cancel_many, message_id, if_unchanged)

    def cancel_many(self, message_ids: Sequence[UUID | str]) -> list[Message | DispatcherError]:
        """Cancel those of these messages that are scheduled; their quotas are free again at once.

        Return for each the cancelled message, or the error of :meth:`cancel`. Raises InvalidDraft
        for an invalid id. After StoreUnavailable some may be cancelled: call it again.
        """
        return self._app.cancellation.cancel_many(ids_of(message_ids))

    def reschedule(
        self,
        message_id: UUID | str,
        *,
        send_at: SendTime | None = None,
        send_in: timedelta | None = None,
        zone: str | None = None,
        set_zone: str | None = None,
        later: timedelta | None = None,
        fold: int | None = None,
        on_conflict: OnConflict = "reject",
        latest: SendTime | None = None,
        expires_at: SendTime | None = None,
        expire_after: timedelta | None = None,
        if_unchanged: Message | None = None,
    ) -> Message:
        """Move a scheduled message to another time. Return it.

        The new time is ``send_at`` or ``send_in``, as for :meth:`submit`, or so much ``later`` than
        the promised one. It must fit every quota without the message's old reservation, which is
        released once this returns. An ``expires_at`` stays and an ``expire_after`` moves along,
        unless one of them is given. A refused move changes nothing.

        Local times are read in ``zone``, by default the message's, which does not change.
        ``set_zone`` is its zone from now on: local times without ``zone`` are read in it, and
        quotas ``in local`` and quiet hours apply in it. The other parameters are those of
        :meth:`submit`.

        Raises:
            InvalidDraft: A parameter was refused.
            QuotaExceeded: A quota is full around the new time.
            QuietHours: The new time lies in quiet hours.
            MessageChanged: Also where another change came between.
            TooLate: It is being sent or has ended.
            ReservationsUnavailable: It has the old time.
            StoreUnavailable: It has the old time or the new one.

        """
        new_time = NewTime(
            send_at=send_at,
            send_in=send_in,
            zone=zone,
            set_zone=set_zone,
            later=later,
            fold=fold,
            on_conflict=on_conflict,
            latest=latest,
            expires_at=expires_at,
            expire_after=expire_after,
        )
        return _only(self._app.changes.reschedule_many, message_id, if_unchanged, new_time)

    def reschedule_many(
        self,
        message_ids: Sequence[UUID | str],
        *,
        send_at: SendTime | None = None,
        send_in: timedelta | None = None,
        zone: str | None = None,
        set_zone: str | None = None,
        later: timedelta | None = None,
        fold: int | None = None,
        on_conflict: OnConflict = "reject",
        latest: SendTime | None = None,
        expires_at: SendTime | None = None,
        expire_after: timedelta | None = None,
    ) -> list[Message | DispatcherError]:
        """Move scheduled messages, in batches, each as :meth:`reschedule` does, in order.

        Return for each the moved message, or the error of :meth:`reschedule`. An id that is given
        twice is moved once. Where a server does not answer, the remaining messages get that error:
        after ReservationsUnavailable they have their old time, after StoreUnavailable the old one
        or the new one. Raises InvalidDraft for an invalid id.
        """
        new_time = NewTime(
            send_at=send_at,
            send_in=send_in,
            zone=zone,
            set_zone=set_zone,
            later=later,
            fold=fold,
            on_conflict=on_conflict,
            latest=latest,
            expires_at=expires_at,
            expire_after=expire_after,
        )
        return self._app.changes.reschedule_many(ids_of(message_ids), new_time)

    def update(
        self,
        message_id: UUID | str,
        *,
        body: AnyBody | None = None,
        template: str | None = None,
        data: Mapping[str, Any] | None = None,
        priority: int | None = None,
        if_unchanged: Message | None = None,
    ) -> Message:
        """Give a scheduled message another ``body``, or that of a ``template``. Return it.

        The template is one of its channel, rendered now with the values in ``data``. The type of
        bodies of the channel validates either. Or give it another ``priority``, or both: it keeps
        its reservation, and where it waits for a limit, a larger one lets it ask again at once.
        Raises InvalidDraft for the content, InvalidSettings for a template that cannot be used, and
        TooLate where it is being sent or has ended.
        """
        update = self._app.changes.update
        change = partial(update, body=body, template=template, data=data, priority=priority)
        return _only(change, message_id, if_unchanged)

    def update_many(
        self, message_ids: Sequence[UUID | str], *, priority: int
    ) -> list[Message | DispatcherError]:
        """Give those of these messages that are scheduled another priority, in batches.

        Return for each the message, or the error of :meth:`update`. Raises InvalidDraft for an
        invalid id or priority. After StoreUnavailable some may have been changed: call it again.
        """
        return self._app.changes.update_many(ids_of(message_ids), priority)

    # Failed and held messages, opt-outs, and the windows.

    def retry(
        self,
        message_id: UUID | str,
        *,
        perhaps_sent: bool = False,
        if_unchanged: Message | None = None,
    ) -> Message:
        """Give a failed message further attempts, as many as its channel allows. Return it.

        It is due at once; it still has its reservation, and the limits apply. ``perhaps_sent`` must
        be True if the outcome of its last attempt is unknown and its ``on_unknown`` is ``hold``: it
        may then be sent twice.

        Raises:
            InvalidValue: It needs ``perhaps_sent``.
            UnknownChannel: The settings do not have its channel any more.
            Suppressed: The recipient has opted out.
            TooLate: It has not failed, or is past its expiry.

        """
        retry = partial(self._app.decisions.retry_many, perhaps_sent=perhaps_sent)
        return _only(retry, message_id, if_unchanged)

    def retry_many(
        self, message_ids: Sequence[UUID | str], *, perhaps_sent: bool = False
    ) -> list[Message | DispatcherError]:
        """Give those of these messages that have failed further attempts, in batches.

        Return for each the message, or the error of :meth:`retry`. Raises InvalidDraft for an
        invalid id. After StoreUnavailable some may have been changed: call it again.
        """
        ids = ids_of(message_ids)
        return self._app.decisions.retry_many(ids, perhaps_sent=perhaps_sent)

    def release(self, message_id: UUID | str, *, if_unchanged: Message | None = None) -> Message:
        """Release a held message to be sent, perhaps for the second time. Return it, due at once.

        It gets one more attempt if it had used all. Past its expiry it ends as expired. Raises
        Suppressed where the recipient has opted out, and TooLate where it is not held.
        """
        return self._app.decisions.release(id_of(message_id), if_unchanged=if_unchanged)

    def drop(
        self,
        message_id: UUID | str,
        *,
        reason: str | None = None,
        if_unchanged: Message | None = None,
    ) -> Message:
        """End a held message as failed. Return it.

        It keeps its reservation, because it may have been sent. ``reason``, a line of at most 255
        characters, becomes part of its ``last_error``. Raises InvalidDraft for the reason, and
        TooLate where the message is not held.
        """
        return self._app.decisions.drop(id_of(message_id), reason=reason, if_unchanged=if_unchanged)

    def suppress(self, recipient: str, *, channel: str | None = None) -> int:
        """Opt a recipient out of one channel or of all; return how many messages it cancelled.

        From now on a submit to it, in every spelling that channels have, raises Suppressed. Its
        scheduled messages are cancelled, and their quotas are free again at once; one that is being
        submitted is cancelled when it is due, and one before its next attempt then. Only a message
        that is being sent now may still arrive. A held one stays held; its release raises
        Suppressed. Another call changes nothing. Raises InvalidDraft and UnknownChannel; after
        StoreUnavailable call it again.
        """
        return self._app.suppression_list.suppress(recipient, channel)

    def unsuppress(self, recipient: str, *, channel: str | None = None) -> tuple[Suppression, ...]:
        """Revoke a :meth:`suppress` with the same parameters. Messages it cancelled stay cancelled.

        Return the suppressions that remain for the recipient: one of all channels and one of a
        single channel are revoked separately. Raises InvalidDraft.
        """
        return self._app.suppression_list.unsuppress(recipient, channel)

    def suppressed(self, recipient: str | None = None) -> Iterator[Suppression]:
        """Yield all suppressions, or those of one recipient, in the order of recipients.

        They are read from the database as the result is, some hundreds at a time.
        """
        return self._while_open(self._app.suppression_list.suppressed(recipient))

    def erase(self, recipient: str, *, keep_opt_out: bool = False) -> Erased:
        """Erase what is stored of a recipient; keep how many messages there were, and when.

        Its scheduled messages are cancelled, held ones end as failed. Of every message that has
        ended, address, body, errors, receipts, idempotency key and status URL are blanked, and it
        is not reported or retried any more; also scopes that have the recipient's name. Its windows
        and permits in Redis, its pauses and the API's answers that name it are deleted. So is its
        opt-out, unless ``keep_opt_out``: that needs the address. Every spelling that channels have
        for the recipient is erased. This cannot be undone.

        A message that is being sent is not touched: the result counts it as ``under_way``, and
        another call erases it once it has ended. Raises InvalidDraft, and StoreUnavailable,
        ReservationsUnavailable or LimitersUnavailable where a server did not answer: call it again.
        """
        return self._app.erasure.erase(recipient, keep_opt_out=keep_opt_out)

    def pause(self, kind: str, name: str) -> tuple[Pause, ...]:
        """Send nothing of a channel, recipient, campaign, event or scope until :meth:`resume`.

        ``kind`` is ``"channel"``, ``"recipient"``, ``"campaign"``, ``"event"`` or a kind of scope
        of the settings. Submits go on. What a worker has claimed is still sent. Messages whose
        expiry comes meanwhile expire when they are resumed. Return all pauses. Another call changes
        nothing. Raises InvalidValue, UnknownChannel and StoreUnavailable.
        """
        self._app.pause_list.pause(kind, name)
        return self.pauses()

    def resume(self, kind: str, name: str) -> tuple[Pause, ...]:
        """End a :meth:`pause`: of a recipient in any spelling. Return the pauses that remain.

        Messages that are due are enqueued within about a second; those that are overdue are
        treated as ``catch_up`` of their channel says. Raises as :meth:`pause` does.
        """
        self._app.pause_list.resume(kind, name)
        return self.pauses()

    def pauses(self) -> tuple[Pause, ...]:
        """Return the pauses in force, in the order of their kinds and names."""
        return tuple(self._app.pauses.in_force())

    def set_quotas(self, kind: str, name: str, quotas: str | Iterable[str]) -> ScopeQuotas:
        """Give one scope quotas of its own, instead of those of its kind in the settings.

        ``kind`` has quotas there: one of ``scopes``, ``"recipient"`` (the scope of a message),
        ``"recipient.<channel>"`` or ``"channel.<channel>"``. Every process judges by them within
        5 s, each booking by these or by those before. What is booked stays; the result tells how
        much of it is too much. Raises InvalidValue, StoreUnavailable, ReservationsUnavailable.
        """
        return self._app.quota_list.put(kind, name, quotas)

    def unset_quotas(self, kind: str, name: str) -> ScopeQuotas:
        """Give a scope the quotas of its kind again; see :meth:`set_quotas`."""
        return self._app.quota_list.put(kind, name, None)

    def set_limits(self, kind: str, name: str, limits: str | Iterable[str]) -> ScopeQuotas:
        """Limit the sends of one scope: of all messages that name it, on any channel.

        ``kind`` is one of ``scopes`` of the settings. A send needs a permit of these limits, too:
        from when its worker knows them, within 5 s, and counted from then on. Raises InvalidValue,
        StoreUnavailable, ReservationsUnavailable.
        """
        return self._app.quota_list.put_limits(kind, name, limits)

    def unset_limits(self, kind: str, name: str) -> ScopeQuotas:
        """End the limits of a scope; messages that wait for them ask again within seconds."""
        return self._app.quota_list.put_limits(kind, name, None)

    def quotas_of(self, kind: str, name: str) -> ScopeQuotas:
        """Return the quotas of one scope, its own or those of its kind, and its limits.

        Raises likewise.
        """
        return self._app.quota_list.of(kind, name)

    def scope_settings(self, kind: str | None = None) -> tuple[ScopeQuotas, ...]:
        """Return the scopes with quotas or limits of their own, by kinds and names."""
        return self._app.quota_list.all(kind)

    def verify_windows(self) -> Verified:
        """Compare the windows in Redis with the store; return every difference.

        Submits may continue meanwhile. Raises ReservationsUnavailable and StoreUnavailable.
        """
        return self._app.verification.verify()

    def rebuild_windows(
        self, shards: Collection[int] | None = None, *, progress: OnRows | None = None
    ) -> tuple[int, ...]:
        """Close shards of the windows (default: all) and rebuild them from the store.

        It closes a few at a time; submits to a closed one raise ReservationsUnavailable with
        ``retry_after``. ``progress`` is called with the number of rows read and of all rows. Return
        the rebuilt shards; another process is rebuilding the others. Raises InvalidValue,
        ReservationsUnavailable and StoreUnavailable; then the sweep rebuilds the closed shards.
        """
        return self._app.reconciler.rebuild(shards, progress=progress)

    # Read. Nothing here books, stores or sends.

    def get(self, message_id: UUID | str) -> Message:
        """Return a message."""
        return self._app.messages.get(id_of(message_id))

    def attempts(self, message_id: UUID | str) -> list[Attempt]:
        """Return the attempts of a message, first one first; none for an unknown id."""
        return self._app.messages.attempts(id_of(message_id))

    def story(self, message_id: UUID | str) -> Story:
        """Return all about a message: itself, its attempts, its reservations, its next step."""
        return self._app.story_reader.read(id_of(message_id))

    def held(self, *, limit: int = 100) -> list[Message]:
        """Return the held messages, oldest first: the outcome of their last attempt is unknown.

        ``next_attempt_at`` is the instant since which they are held.
        """
        _check_limit(limit)
        held = Selection(status=Status.HELD)
        return next(self._app.listing.pages(held, size=limit, oldest_first=True))

    def count(self, **wanted: Unpack[Wanted]) -> int:
        """Return how many messages match all filters (:class:`~dispatcher.Wanted`).

        Messages that change meanwhile may be missed. Raises InvalidDraft and StoreUnavailable, and
        TypeError for a filter that does not exist, as :meth:`select` and :meth:`list` do.
        """
        return self._app.listing.count(selection_of(wanted, self.settings))

    def counts(self, **wanted: Unpack[Wanted]) -> dict[str, dict[Status, int]]:
        """Return how many messages match all filters, by channel and status.

        ``counts(campaign="summer")`` is what has come of a campaign. Raises like :meth:`count`.
        """
        return self._app.listing.counted(selection_of(wanted, self.settings))[0]

    def select(self, *, oldest_first: bool = False, **wanted: Unpack[Wanted]) -> Iterator[Message]:
        """Yield the messages that match all filters (:class:`~dispatcher.Wanted`).

        Newest first, or oldest first; without those made after the call. They are read as the
        result is, some hundreds at a time. Raises InvalidDraft, and StoreUnavailable at any time.
        """
        selection = selection_of(wanted, self.settings)
        pages = self._app.listing.pages(
            selection, size=_PAGE, before=new_id(), oldest_first=oldest_first
        )
        return self._while_open(message for page in pages for message in page)

    def next_slot(
        self,
        *,
        recipient: str | None = None,
        scope: str | None = None,
        channel: str | None = None,
        scopes: Mapping[str, str] | None = None,
        quiet_hours: str | None = None,
        send_window: str | None = None,
        priority: int | None = None,
        after: SendTime | None = None,
        zone: str | None = None,
        fold: int | None = None,
    ) -> datetime:
        """Return the first time at or after ``after`` (default: now) that fits every quota.

        Books nothing. The parameters are those of :meth:`submit`; a recipient or a scope is needed.
        Without ``channel`` no quotas and quiet hours of a channel apply. Raises InvalidDraft and
        ReservationsUnavailable.
        """
        zone = plain(zone)
        if channel is not None:
            channel = known_channel(channel, self.settings)
        if scope is not None:
            name = check_text("scope", scope)
        elif recipient is not None:
            recipient = check_recipient(recipient)
            name = scope_name(self.settings.spellings.one(recipient, channel))
        else:
            raise InvalidDraft("recipient", "neither recipient nor scope given", "one of them")
        terms = terms_for(
            self.settings,
            scope=name,
            channel=channel,
            scopes=checked_scopes(scopes, self.settings),
            zone=zone,
            quiet_hours=own_hours(quiet_hours, send_window),
            priority=priority,
        )
        now = self._app.clock.now()
        if after is None:
            start = send_time.after(timedelta(0), now=now)
        else:
            start = send_time.parse(after, zone=zone, fold=fold, field="after")
            farthest = self.settings.max_horizon
            send_time.check_range(start, now=now, farthest=farthest, field="after")
        return self._app.windows.next_slot(terms, start)

    def timeline(
        self,
        scope: str | None = None,
        *,
        channel: str | None = None,
        scopes: Mapping[str, str] | None = None,
        zone: str | None = None,
        kind: str | None = None,
        start: SendTime | None = None,
        length: timedelta = timedelta(days=2),
        priority: int | None = None,
    ) -> Timeline:
        """Return the booked, blocked and free times of a scope, from ``start`` (default: now) on.

        It has booked times, the fill of each quota and the times it refuses, quiet hours, and the
        next slots. ``channel``, ``scopes``, ``zone`` and ``priority`` (which may use places that a
        quota keeps) apply as for :meth:`submit`; with ``kind`` only the scope of that kind, such as
        a tenant, is read. Without a scope it reads the ``channel`` as a whole, or the ``scopes``.
        ``length`` is at most 366 days. A scope is spelt as a recipient; one that no channel accepts
        as such is refused, unless messages of a ``scope`` of that name are booked. Raises
        InvalidDraft and ReservationsUnavailable.
        """
        return self._app.timeline_reader.read(
            plain(scope),
            channel=plain(channel),
            scopes=scopes,
            zone=plain(zone),
            kind=plain(kind),
            start=start,
            length=length,
            priority=priority,
        )

    def status(self, *, since: timedelta = timedelta(days=1)) -> Overview:
        """Return the state of the deployment: counts, overdue messages, load, limits, processes.

        Messages that have ended are counted if they did so within ``since``. Where Redis does not
        answer, its figures are None. Raises InvalidValue and StoreUnavailable.
        """
        return self._app.overviews.read(since=since)

    def load(self, *, within: timedelta = timedelta(days=1)) -> LoadToCome:
        """Return what is due in each minute of each channel, and when the last of it leaves.

        ``within`` is at most 7 days. The channel's limits are counted; a minute whose messages
        leave after it is ``overbooked``. At most 1,000,000 messages are counted, the soonest first.
        Raises InvalidValue and StoreUnavailable.
        """
        return self._app.overviews.load(within=within)

    def refusals(
        self,
        *,
        since: timedelta = timedelta(days=1),
        quota: str | None = None,
        last: int = 20,
    ) -> Refusals:
        """Return which rules refused how many submits, and how far away the next slots were.

        ``since`` is at most 7 days; with ``quota`` (``"5/hour"``) only the refusals by that quota.
        ``last`` is how many of the last refusals are listed. Moves and plans are not counted.
        Raises InvalidValue and ReservationsUnavailable.
        """
        return self._app.refusals.read(since=since, quota=quota, last=last)

    def top(
        self,
        of: Of = "scope",
        *,
        by: By = "messages",
        within: timedelta = timedelta(days=1),
        limit: int = 10,
    ) -> Tops:
        """Return the busiest scopes, recipients or channels by messages due ``within`` that time.

        Each has the quota that is nearest to full; ``by="fill"`` sorts the 50 with most messages by
        that. Raises InvalidValue and StoreUnavailable.
        """
        return self._app.overviews.tops(of, within=within, limit=limit, by=by)

    # Below this method `list` is no longer the built-in, so methods that return one are above.
    def list(
        self, *, limit: int = 50, after: UUID | str | None = None, **wanted: Unpack[Wanted]
    ) -> Page:
        """Return a page of the messages that match all filters, newest first.

        ``limit`` is how many, at most 10,000, and ``after`` that of the page before; the filters
        are those of :class:`~dispatcher.Wanted`. Raises InvalidDraft.
        """
        _check_limit(limit)
        start = None if after is None else id_of(after, "after")
        return self._app.listing.page(selection_of(wanted, self.settings), after=start, limit=limit)

    # The awaited calls.

    asubmit = awaited(submit)
    """Await :meth:`submit`, which runs in a thread, so that the loop is not blocked.

    Every call above has such a twin, with its parameters, results and errors. At most four
    awaited calls run at a time, and others wait; one with ``session`` waits for none of them.
    ``session`` is an AsyncSession or an AsyncConnection of SQLAlchemy: see docs/submitting.md.

    A call that is cancelled before it begins is not made. One under way continues; submit again
    with the same idempotency key to get its message. With a ``session`` a call that is cancelled
    ends, and gives its reservation back. :meth:`close` and :meth:`aclose` wait for calls under way.
    """

    asubmit_many = awaited(listed(submit_many))
    """Await :meth:`submit_many`. The result is a list, for any iterable of drafts."""

    aplan = awaited(plan)
    acancel = awaited(cancel)
    acancel_many = awaited(cancel_many)
    areschedule = awaited(reschedule)
    areschedule_many = awaited(reschedule_many)
    aupdate = awaited(update)
    aupdate_many = awaited(update_many)
    aretry = awaited(retry)
    aretry_many = awaited(retry_many)
    arelease = awaited(release)
    adrop = awaited(drop)
    asuppress = awaited(suppress)
    aunsuppress = awaited(unsuppress)
    aerase = awaited(erase)
    asuppressed = streamed(suppressed)
    apause = awaited(pause)
    aresume = awaited(resume)
    apauses = awaited(pauses)
    aset_quotas = awaited(set_quotas)
    aunset_quotas = awaited(unset_quotas)
    aquotas_of = awaited(quotas_of)
    ascope_settings = awaited(scope_settings)
    aset_limits = awaited(set_limits)
    aunset_limits = awaited(unset_limits)
    averify_windows = awaited(verify_windows)
    arebuild_windows = awaited(rebuild_windows)
    aget = awaited(get)
    aattempts = awaited(attempts)
    astory = awaited(story)
    aheld = awaited(held)
    acount = awaited(count)
    acounts = awaited(counts)
    aselect = streamed(select)
    anext_slot = awaited(next_slot)
    atimeline = awaited(timeline)
    astatus = awaited(status)
    aload = awaited(load)
    arefusals = awaited(refusals)
    atop = awaited(top)
    alist = awaited(list)  # noqa: A003 - the method


class _ClosedApp:
    """Stands in for the parts of a dispatcher that was closed."""

    def close(self) -> None:
        """Do nothing: the parts are closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _closed()


def _closed() -> RuntimeError:
    return RuntimeError("the dispatcher is closed; make a new one")


def called(work: Callable[[], T]) -> T:
    """Return what ``work`` returns in a thread. No future can end with StopIteration."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("StopIteration was raised in a thread") from error


def app_of(dispatcher: Dispatcher) -> App:
    """Return the app of a dispatcher, for the ways in that need more than its methods."""
    return dispatcher._app


def check_open(dispatcher: Dispatcher) -> None:
    """Raise RuntimeError once ``close`` was called."""
    if dispatcher._is_closed:
        raise _closed()


def threads_of(dispatcher: Dispatcher, most: int) -> ThreadPoolExecutor:
    """Return new threads, for which ``close`` waits. They end with the one that holds them."""
    with dispatcher._state_lock:
        check_open(dispatcher)
        threads = _threads(most)
        dispatcher._lent.add(threads)
    return threads


def for_pages(dispatcher: Dispatcher) -> Dispatcher:
    """Return a dispatcher that reads on the connections for pages, which ``dispatcher`` closes."""
    made = Dispatcher(dispatcher.settings)
    made._app = dispatcher._app.pages
    return made


def selection_of(wanted: Wanted, settings: Settings) -> Selection:
    """Validate filters, and spell the recipient as it is stored. Raises InvalidDraft."""
    selection = Selection.of(wanted)
    of_channels = (of(name) for name in settings.channels for of in (of_scope_on, of_channel))
    kinds = [*settings.scopes, *of_channels]
    for kind, _ in selection.scopes:
        if kind not in kinds:
            accepted = f"names by kind; the settings have {', '.join(kinds)}"
            raise InvalidDraft("scopes", f"there is no kind {kind[:80]!r}", accepted)
    if selection.recipient is None:
        return selection
    channel = selection.channels[0] if len(selection.channels) == 1 else None
    spelt = settings.spellings.one(selection.recipient, channel)
    return replace(selection, recipient=spelt)


def _only(
    change: Callable[..., list[Message | DispatcherError]],
    message_id: UUID | str,
    if_unchanged: Message | None,
    *further: object,
) -> Message:
    """Make a change of many messages to one, and raise why it was not changed."""
    id_ = id_of(message_id)
    before = {} if if_unchanged is None else {id_: if_unchanged}
    [answer] = change([id_], *further, if_unchanged=before)
    if isinstance(answer, DispatcherError):
        raise answer
    return answer


def _threads(most: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(most, thread_name_prefix="dispatcher")


def _overridden(drafts: Iterable[Draft], on_conflict: OnConflict | None) -> Iterable[Draft]:
    if not isinstance(drafts, Iterable):
        raise InvalidDraft("drafts", kind_of(drafts), "Drafts")
    if on_conflict is None:
        return drafts
    return (
        replace(draft, on_conflict=on_conflict) if isinstance(draft, Draft) else draft
        for draft in drafts
    )


def _check_limit(limit: object, field: str = "limit") -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _MOST_FOUND:
        raise InvalidDraft(field, quoted(limit), f"1 to {_MOST_FOUND}")
