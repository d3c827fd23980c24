"""The client: submit messages, look them up, change and cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial, wraps
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from dispatcher.app import App
from dispatcher.delivery.reconciler import OnRows
from dispatcher.errors import DispatcherError, InvalidDraft, InvalidValue, kind_of, quoted
from dispatcher.message import (
    Attempt,
    Draft,
    Message,
    OnConflict,
    OnUnknown,
    Plan,
    check_text,
    new_id,
)
from dispatcher.operations.overview import By, Overview, Tops
from dispatcher.operations.verification import Verified
from dispatcher.reservation import Timeline
from dispatcher.scope import of_channel, of_scope_on
from dispatcher.selection import Page, Selection, Wanted, id_of
from dispatcher.settings import Settings
from dispatcher.store import Of, Suppression
from dispatcher.submission import OnProgress, Result, Story, Unread, Wish, terms_for
from dispatcher.times import send_time
from dispatcher.times.clock import Clock

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

P = ParamSpec("P")
T = TypeVar("T")
SendTime = datetime | str

_MOST_FOUND = 10_000
_PAGE = 500
_MOST_AWAITED = 8


def awaited(
    call: Callable[Concatenate[Dispatcher, P], T],
) -> Callable[Concatenate[Dispatcher, P], Coroutine[Any, Any, T]]:
    """Return a call as a coroutine function with the same parameters, result and errors.

    It runs in a thread, in the caller's context: so each call has one implementation. It raises
    InvalidDraft for a ``session``: a transaction cannot be joined from another thread.
    """

    @wraps(call)
    async def waits(self: Dispatcher, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("session") is not None:
            raise InvalidDraft(
                "session",
                "a transaction cannot be joined by a call that is awaited",
                "await session.run_sync(…) with submit, as docs/transactions.md shows",
            )
        work = partial(copy_context().run, partial(call, self, *args, **kwargs))
        with self._closing:
            awaits = asyncio.get_running_loop().run_in_executor(self._threads, work)
        return await awaits

    waits.__doc__ = f"Await :meth:`{getattr(call, '__name__', 'call')}`, which runs in a thread."
    return waits


def listed(call: Callable[P, Iterable[T]]) -> Callable[P, list[T]]:
    """Return ``call`` with its whole result as a list."""

    @wraps(call)
    def reads(*args: P.args, **kwargs: P.kwargs) -> list[T]:
        return [*call(*args, **kwargs)]

    return reads


class Dispatcher:
    """Submits messages, looks them up, changes and cancels them.

    ``settings`` default to those of the environment and ``dispatcher.toml``; see
    :class:`~dispatcher.settings.Settings`. Nothing connects before the first call. One instance
    may be shared by threads; after a fork make a new one. Use it as a context manager, or call
    :meth:`close`; in a coroutine with ``async with``, or :meth:`aclose`.
    """

    def __init__(self, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        if not (settings is None or isinstance(settings, Settings)):
            raise InvalidValue("settings", kind_of(settings), "Settings, as from Settings.load()")
        self.settings = settings if settings is not None else Settings.load()
        self._app = App(self.settings, clock)
        self._threads = _awaiting()
        self._closing = Lock()

    def close(self) -> None:
        """Wait for awaited calls under way, then close the connections."""
        with self._closing:  # else a call that begins meanwhile finds threads that take none
            threads, self._threads = self._threads, _awaiting()
        threads.shutdown()
        self._app.close()

    async def aclose(self) -> None:
        """Close without blocking the loop. ``async with`` does so, too."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Submit.

    def submit(
        self,
        *,
        channel: str,
        recipient: str,
        body: Mapping[str, Any] | None = None,
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
        session: Session | Connection | None = None,
    ) -> Message:
        """Accept a message for a future time, if it fits every quota. Return it.

        Its content is ``body``, or a ``template`` of the channel rendered with ``data`` now.
        The time is ``send_at`` or ``send_in`` from now. ``send_at`` is an aware datetime, an ISO
        8601 string with an offset, or a local time (string or naive datetime) with ``zone``;
        ``fold`` selects one of two repeated local times. ``scope`` is the scope that it counts
        against, by default the recipient; ``scopes`` are further ones by kind, as in
        ``{"tenant": "acme"}``. ``zone`` is the recipient's: quotas ``in local`` count by its
        calendar, and ``quiet_hours`` (``"21:00-08:00"``, ``"none"``) or ``send_window`` apply in
        it. Without hours of its own a message has those of its channel. With ``idempotency_key`` a
        repeated call returns the message of the first one. After ``expires_at``, or
        ``expire_after`` its time, the message is not sent any more. ``on_conflict="shift"`` books
        the first slot that fits every quota outside quiet hours, up to ``latest``. After an attempt
        with an unknown outcome ``on_unknown="retry"`` makes another one, and ``"hold"`` waits for
        :meth:`release` or :meth:`drop`; the default is the channel's. ``status_url``, of at most
        255 characters, gets a POST, at least once, when the message is sent, failed, expired,
        cancelled or held. See docs/status-webhooks.md.

        Once this returns, the message ends as sent, failed, expired or cancelled, whatever
        process dies, or is held. When it raises, nothing is reserved or stored (except
        OutcomeUnknown).

        With ``session``, a SQLAlchemy Session or Connection on the dispatcher's database, the
        message is stored in its transaction: it commits or rolls back with the caller's own rows,
        and the promise above applies from the commit on. Its reservation is released on rollback;
        it is enqueued after the commit. See docs/transactions.md.

        Raises:
            InvalidDraft: a parameter was refused (InvalidSendTime, UnknownChannel, Suppressed).
            QuotaExceeded, QuietHours: the time does not fit; both carry the next slot.
            IdempotencyConflict: the key belongs to a message with other content.
            ReservationsUnavailable: Redis is down, incomplete, evicting or full.
            StoreUnavailable: the database did not store the message.
            OutcomeUnknown: the connection broke; the message may have been stored.

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
        )
        if session is not None:
            return self._app.submitter.submit(draft, self._app.callers_transactions.of(session))
        return self._app.submitter.submit(draft, self._app.own_transaction)

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

        For a list or tuple the result is a list. For any other iterable, such as a generator, it
        is an iterator that submits while it is read, with one batch in memory. Earlier drafts
        count for later ones of the same scope. ``on_conflict`` replaces that of every draft. With
        ``atomic`` all are accepted or none, and all are in memory together. ``progress`` is called
        with a Progress after each batch.

        A refused draft becomes a Rejection with the error that :meth:`submit` would raise. Raises
        ReservationsUnavailable and StoreUnavailable: earlier batches are accepted, of the current
        batch some drafts may be. If the drafts have idempotency keys, a second run completes the
        first one.
        """
        every = _overridden(drafts, on_conflict)
        batches = self._app.batches
        if atomic:
            return batches.submit_all(list(every), progress=progress)
        total = len(drafts) if isinstance(drafts, Sized) else None
        if isinstance(drafts, Sequence):
            return list(batches.submit_each(every, total=total, progress=progress))
        return Unread(batches.submit_each(every, total=total, progress=progress))

    def plan(
        self,
        drafts: Iterable[Draft],
        *,
        on_conflict: OnConflict | None = None,
        progress: OnProgress | None = None,
    ) -> Plan:
        """Return the result that :meth:`submit_many` would have now. Books and stores nothing.

        The parameters are those of :meth:`submit_many`. Earlier drafts
        count for later ones, as do the reservations of a scope when the plan first reads it. One
        batch and the refused drafts are in memory. A plan reserves nothing: other submits may take
        the capacity before the drafts are submitted.
        Raises ReservationsUnavailable and StoreUnavailable.
        """
        total = len(drafts) if isinstance(drafts, Sized) else None
        every = _overridden(drafts, on_conflict)
        return self._app.batches.plan(every, total=total, progress=progress)

    # Change accepted messages. The row decides every race.

    def cancel(self, message_id: UUID | str) -> Message:
        """Cancel a scheduled message; its quota is free again at once. Return it.

        Once this returns, the message is never sent. Another call changes nothing. Raises
        MessageNotFound, and TooLate once it is being sent, is held or has ended.
        """
        return self._app.changes.cancel(id_of(message_id))

    def cancel_many(self, message_ids: Sequence[UUID | str]) -> list[Message | DispatcherError]:
        """Cancel those of these messages that are scheduled; their quotas are free again at once.

        Return for each the cancelled message, or the error that :meth:`cancel` would raise. Raises
        InvalidDraft for an invalid id. Raises StoreUnavailable: some may be cancelled; then call it
        again.
        """
        return self._app.cancellation.cancel([id_of(each) for each in message_ids])

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
    ) -> Message:
        """Move a scheduled message to another time. Return it.

        The parameters are those of :meth:`submit`; ``later`` is a length to add to the promised
        time. The new time must fit every quota without the message's old reservation, which is
        released once this returns. Local times are read in ``zone``, by default the message's,
        which does not change. ``set_zone`` gives the message another zone: local times without
        ``zone`` are read in it, and quotas ``in local`` and quiet hours apply in it from now on. An
        ``expires_at`` stays and an ``expire_after`` moves along, unless one of them is given. A
        refused move changes nothing.

        Raises InvalidDraft, QuotaExceeded, QuietHours, MessageNotFound, ReservationsUnavailable;
        TooLate once it is being sent or has ended; StoreUnavailable: it has the old time or the
        new one.
        """
        wish = Wish(
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
        return self._app.changes.reschedule(id_of(message_id), wish)

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

        Return for each the moved message, or the error that :meth:`reschedule` would raise. An id
        that is given twice is moved once. Where a server does not answer, the remaining messages
        get that error: after ReservationsUnavailable they have their old time, after
        StoreUnavailable the old one or the new one. Raises InvalidDraft for an invalid id.
        """
        wish = Wish(
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
        return self._app.changes.reschedule_many([id_of(each) for each in message_ids], wish)

    def update(
        self,
        message_id: UUID | str,
        *,
        body: Mapping[str, Any] | None = None,
        template: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Message:
        """Give a scheduled message another body, or that of a template of its channel. Return it.

        ``template`` and ``data`` are those of :meth:`submit`: rendered and checked now. Raises
        InvalidDraft, InvalidSettings for a template that cannot be used, MessageNotFound,
        StoreUnavailable, and TooLate once it is being sent or has ended.
        """
        return self._app.changes.update(id_of(message_id), body=body, template=template, data=data)

    # Failed and held messages, opt-outs, and the windows.

    def retry(self, message_id: UUID | str, *, perhaps_sent: bool = False) -> Message:
        """Give a failed message further attempts, as many as its channel allows. Return it.

        It is due at once; it still has its reservation, and the limits apply. If the outcome of its
        last attempt is unknown and its ``on_unknown`` is ``hold``, it may be sent twice, and
        ``perhaps_sent`` must be True. Raises MessageNotFound, InvalidValue, UnknownChannel,
        Suppressed, and TooLate where it has not failed, or is past its expiry.
        """
        return self._app.decisions.retry(id_of(message_id), perhaps_sent=perhaps_sent)

    def retry_many(
        self, message_ids: Sequence[UUID | str], *, perhaps_sent: bool = False
    ) -> list[Message | DispatcherError]:
        """Give those of these messages that have failed further attempts, in batches.

        Return for each the message, or the error that :meth:`retry` would raise. Raises
        InvalidDraft for an invalid id. Raises StoreUnavailable: some may have been changed; then
        call it again.
        """
        ids = [id_of(each) for each in message_ids]
        return self._app.decisions.retry_many(ids, perhaps_sent=perhaps_sent)

    def release(self, message_id: UUID | str) -> Message:
        """Release a held message to be sent, perhaps for the second time. Return it, due at once.

        It gets one more attempt if it had used all. Past its expiry it ends as expired.
        Raises MessageNotFound, Suppressed, and TooLate where it is not held.
        """
        return self._app.decisions.release(id_of(message_id))

    def drop(self, message_id: UUID | str) -> Message:
        """End a held message as failed. Return it.

        It keeps its reservation, because it may have been sent. Raises MessageNotFound,
        and TooLate where it is not held.
        """
        return self._app.decisions.drop(id_of(message_id))

    def suppress(self, recipient: str, *, channel: str | None = None) -> int:
        """Opt a recipient out of one channel or of all; return how many messages it cancelled.

        From now on a submit to it raises Suppressed. Its scheduled messages are cancelled, and
        their quotas are free again at once. A submit under way may still store its message: that is
        cancelled when it is due, and so is a message before its next attempt. Only a message that
        is being sent now may still arrive. A held one stays held; its release raises Suppressed.
        Every spelling that channels have for the recipient opts out. Another call changes nothing.

        Raises InvalidDraft, UnknownChannel, and StoreUnavailable: then call it again.
        """
        return self._app.suppression_list.suppress(recipient, channel)

    def unsuppress(self, recipient: str, *, channel: str | None = None) -> tuple[Suppression, ...]:
        """Revoke a :meth:`suppress` with the same parameters. Messages it cancelled stay cancelled.

        Return the suppressions that remain for the recipient: one of all channels and one of a
        single channel are revoked separately. Raises InvalidDraft and StoreUnavailable.
        """
        return self._app.suppression_list.unsuppress(recipient, channel)

    def suppressed(self, recipient: str | None = None) -> Iterator[Suppression]:
        """Yield all suppressions, or those of one recipient, in the order of recipients.

        They are read from the database as the result is, some hundreds at a time. Raises
        StoreUnavailable.
        """
        return self._app.suppression_list.suppressed(recipient)

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
        """Return a message. Raises MessageNotFound."""
        return self._app.messages.get(id_of(message_id))

    def attempts(self, message_id: UUID | str) -> list[Attempt]:
        """Return the attempts of a message, first one first; none for an unknown id."""
        return self._app.messages.attempts(id_of(message_id))

    def story(self, message_id: UUID | str) -> Story:
        """Return all about a message: itself, its attempts, its reservations, its next step.

        Raises MessageNotFound and StoreUnavailable.
        """
        return self._app.story_reader.read(id_of(message_id))

    def held(self, *, limit: int = 100) -> list[Message]:
        """Return the held messages, oldest first: the outcome of their last attempt is unknown.

        ``next_attempt_at`` is the instant since which they are held.
        """
        _check_limit(limit)
        return self._app.decisions.held(limit=limit)

    def count(self, **wanted: Unpack[Wanted]) -> int:
        """Return how many messages match all filters (:class:`~dispatcher.Wanted`).

        Messages that change meanwhile may be missed. Raises InvalidDraft and StoreUnavailable, and
        TypeError for a filter that does not exist, as :meth:`select` and :meth:`list` do.
        """
        return self._app.listing.count(self._chosen(wanted))

    def select(self, *, oldest_first: bool = False, **wanted: Unpack[Wanted]) -> Iterator[Message]:
        """Yield the messages that match all filters (:class:`~dispatcher.Wanted`).

        Newest first, or oldest first; without those made after the call. They are read from the
        database as the result is, some hundreds at a time, so any number may be yielded. Raises
        InvalidDraft, and StoreUnavailable at any time.
        """
        selection = self._chosen(wanted)
        pages = self._app.listing.pages(
            selection, size=_PAGE, before=new_id(), oldest_first=oldest_first
        )
        return (message for page in pages for message in page)

    def next_slot(
        self,
        *,
        recipient: str | None = None,
        scope: str | None = None,
        channel: str | None = None,
        scopes: Mapping[str, str] | None = None,
        quiet_hours: str | None = None,
        send_window: str | None = None,
        after: SendTime | None = None,
        zone: str | None = None,
        fold: int | None = None,
    ) -> datetime:
        """Return the first time at or after ``after`` (default: now) that fits every quota.

        Books nothing. The parameters are those of :meth:`submit`; a recipient or a scope is needed.
        Without ``channel`` no quotas and quiet hours of a channel apply. Raises InvalidDraft and
        ReservationsUnavailable.
        """
        if scope is not None:
            name = check_text("scope", scope)
        elif recipient is not None:
            recipient = check_text("recipient", recipient)
            name = self.settings.spellings.one(recipient, channel)
        else:
            raise InvalidDraft("recipient", "neither recipient nor scope given", "one of them")
        terms = terms_for(
            self.settings,
            scope=name,
            channel=channel,
            scopes=scopes,
            zone=zone,
            quiet_hours=quiet_hours,
            send_window=send_window,
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
    ) -> Timeline:
        """Return the booked, blocked and free times of a scope, from ``start`` (default: now) on.

        It has booked times, the fill of each quota and the times it refuses, quiet hours, and the
        next slots. ``channel``, ``scopes`` and ``zone`` apply as for :meth:`submit`; with ``kind``
        only the scope of that kind, such as a tenant, is read. Without a scope it reads the
        ``channel`` as a whole, or the ``scopes``. ``length`` is at most 366 days.
        Raises InvalidDraft and ReservationsUnavailable.
        """
        return self._app.timeline_reader.read(
            scope,
            channel=channel,
            scopes=scopes,
            zone=zone,
            kind=kind,
            start=start,
            length=length,
        )

    def status(self, *, since: timedelta = timedelta(days=1)) -> Overview:
        """Return the state of the deployment: counts, overdue messages, load, limits, processes.

        Messages that have ended are counted if they did so within ``since``. Where Redis does not
        answer, its figures are None. Raises InvalidValue and StoreUnavailable.
        """
        return self._app.overviews.read(since=since)

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

        See :class:`~dispatcher.Wanted` for the filters. ``limit`` is at most 10,000. The page's
        ``after`` gets the next page. Raises InvalidDraft and StoreUnavailable.
        """
        _check_limit(limit)
        start = None if after is None else id_of(after, "after")
        return self._app.listing.page(self._chosen(wanted), after=start, limit=limit)

    def _chosen(self, wanted: Wanted) -> Selection:
        """Validate filters, and spell the recipient as it is stored.

        Refuses a kind of scope that the settings do not have.
        """
        selection = Selection.of(wanted)
        near = (word(each) for each in self.settings.channels for word in (of_scope_on, of_channel))
        kinds = [*self.settings.scopes, *near]
        for kind, _ in selection.scopes:
            if kind not in kinds:
                accepted = f"names by kind; the kinds are {', '.join(kinds)}"
                raise InvalidDraft("scopes", f"there is no kind {kind[:80]!r}", accepted)
        if selection.recipient is None:
            return selection
        spelt = self.settings.spellings.one(selection.recipient, selection.channel)
        return replace(selection, recipient=spelt)

    # The awaited calls.

    asubmit = awaited(submit)
    """Await :meth:`submit`, which runs in a thread, so that the loop is not blocked.

    So do :meth:`asubmit_many`, :meth:`acancel`, :meth:`areschedule` and :meth:`aget`, with the
    parameters, results and errors of the synchronous methods. At most eight such calls run at a
    time; further ones wait. ``session`` is refused: see docs/transactions.md.

    A call that is cancelled before it begins is not made. One under way continues; submit again
    with the same idempotency key to get its message.
    :meth:`close` and :meth:`aclose` wait for calls under way.
    """

    asubmit_many = awaited(listed(submit_many))
    """Await :meth:`submit_many`. The result is a list, for any iterable of drafts."""

    acancel = awaited(cancel)
    """Await :meth:`cancel`."""

    areschedule = awaited(reschedule)
    """Await :meth:`reschedule`."""

    aget = awaited(get)
    """Await :meth:`get`."""


def _awaiting() -> ThreadPoolExecutor:
    """Return threads for awaited calls, each started when it is needed. Further calls queue."""
    return ThreadPoolExecutor(_MOST_AWAITED, thread_name_prefix="dispatcher")


def _overridden(drafts: Iterable[Draft], on_conflict: OnConflict | None) -> Iterable[Draft]:
    if on_conflict is None:
        return drafts
    return (
        replace(each, on_conflict=on_conflict) if isinstance(each, Draft) else each
        for each in drafts
    )


def _check_limit(limit: object) -> None:
    """Raise InvalidDraft unless ``limit`` is a number of messages that one call may return."""
    if not isinstance(limit, int) or not 1 <= limit <= _MOST_FOUND:
        raise InvalidDraft("limit", quoted(limit), f"1 to {_MOST_FOUND}")
