"""The client: submit messages, look them up, change and cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload
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
from dispatcher.threads import Threads, awaited, listed
from dispatcher.times import send_time
from dispatcher.times.clock import Clock

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

SendTime = datetime | str

_MOST_FOUND = 10_000
_PAGE = 500


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
        self._threads = Threads()

    def close(self) -> None:
        """Wait for calls that others await, then close the connections."""
        self._threads.close()
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
        ``fold`` says which of two repeated local times is meant. ``scope`` names whose capacity
        is counted, by default the recipient; ``scopes`` names further ones by kind, as in
        ``{"tenant": "acme"}``. ``zone`` is the recipient's: quotas ``in local`` count by its
        calendar, and ``quiet_hours`` (``"21:00-08:00"``, ``"none"``) or ``send_window`` go by its
        clocks. A message that brings no hours has those of its channel. With ``idempotency_key`` a
        repeated call returns the message of the first one. After ``expires_at``, or
        ``expire_after`` its time, the message is not sent any more. ``on_conflict="shift"`` books
        the first slot that fits every quota outside quiet hours, up to ``latest``. Where nobody
        knows what came of a try, ``on_unknown="retry"`` makes another one, and ``"hold"`` waits for
        :meth:`release` or :meth:`drop`; by default the channel says which. ``status_url`` is told,
        at least once, when the message was sent, failed, expired, was cancelled or is held; its
        longest is 255 characters. See docs/status-webhooks.md.

        Once this returns, the message ends as sent, failed, expired or cancelled, whatever
        process dies, or is held where it is to be. When it raises, nothing is reserved or stored
        (except OutcomeUnknown).

        With ``session``, a SQLAlchemy Session or Connection on the dispatcher's database, the
        message is stored in its transaction: it commits or rolls back with the caller's own rows,
        and the promise above holds from the commit on. Its place is reserved until then, given back
        on rollback; it is handed over after the commit. See docs/transactions.md.

        Raises:
            InvalidDraft: a parameter was refused (InvalidSendTime, UnknownChannel, Suppressed).
            QuotaExceeded, QuietHours: the time does not fit; both carry the next slot.
            IdempotencyConflict: the key belongs to other content.
            ReservationsUnavailable: Redis is down, incomplete, evicting or full.
            StoreUnavailable: the database did not take the message.
            OutcomeUnknown: the line broke; the message may have been stored.

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

        For a list or tuple the answer is a list. For any other iterable, such as a generator, it
        is an iterator that submits while it is read and holds one batch in memory. Drafts that
        count against the same scope see those before them. ``on_conflict`` is for all drafts,
        instead of their own. With ``atomic`` all are accepted or none, and held in memory
        together. ``progress`` is called with a Progress after each batch.

        A draft that cannot be accepted is a Rejection with the error :meth:`submit` would raise.
        Raises ReservationsUnavailable and StoreUnavailable: the batches before are accepted, of
        the batch under way some drafts may be. Give the drafts idempotency keys and run it again:
        then it ends as if run once.
        """
        every = _overridden(drafts, on_conflict)
        batches = self._app.batches
        if atomic:
            return batches.submit_all(list(every), progress=progress)
        total = len(drafts) if isinstance(drafts, Sized) else None
        if isinstance(drafts, Sequence):
            return list(batches.submit_each(every, total=total, progress=progress, ahead=True))
        return Unread(batches.submit_each(every, total=total, progress=progress))

    def plan(
        self,
        drafts: Iterable[Draft],
        *,
        on_conflict: OnConflict | None = None,
        progress: OnProgress | None = None,
    ) -> Plan:
        """Return what :meth:`submit_many` would answer now. Books and stores nothing.

        The parameters are those of :meth:`submit_many`. Drafts see those before them, and what was
        booked when the plan first met their scope. Holds one batch and the refused drafts in
        memory. The answer is no promise: others may take a place before the drafts are submitted.
        Raises ReservationsUnavailable and StoreUnavailable.
        """
        total = len(drafts) if isinstance(drafts, Sized) else None
        every = _overridden(drafts, on_conflict)
        return self._app.batches.plan(every, total=total, progress=progress)

    # Change what was accepted. The row decides every race.

    def cancel(self, message_id: UUID | str) -> Message:
        """Cancel a scheduled message; its quota is free again at once. Return it.

        Once this returns, the message is never sent. Cancelling it again is fine. Raises
        MessageNotFound, and TooLate once it is being sent, is held or has ended.
        """
        return self._app.changes.cancel(id_of(message_id))

    def cancel_many(self, message_ids: Sequence[UUID | str]) -> list[Message | DispatcherError]:
        """Cancel what of these is still scheduled; all of their quotas are free again at once.

        Return for each the cancelled message, or the error that :meth:`cancel` would raise. Raises
        InvalidDraft for what is no id; StoreUnavailable: some are cancelled then, and cancelling
        again is fine.
        """
        return self._app.cancelling.cancel([id_of(each) for each in message_ids])

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
        """Move a scheduled message to another time, judged as if it had no place yet. Return it.

        The parameters are those of :meth:`submit`; ``later`` is by how much later than promised it
        is to go. Local times are read by ``zone``, by default the message's, which stays as it is.
        ``set_zone`` gives the message another zone: local times without ``zone`` are read by it,
        and quotas ``in local`` and quiet hours go by it from now on. An ``expires_at`` stays and an
        ``expire_after`` moves along, unless one of them is given. The old place is free once this
        returns. A refused move changes nothing.

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
        that is given twice is moved once. Where something outside does not answer, the rest is left
        alone, and gets that error: after ReservationsUnavailable such a message has its old time,
        after StoreUnavailable the old one or the new one. Raises InvalidDraft for what is no id.
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

        ``template`` and ``data`` are those of :meth:`submit`: rendered and judged now. Raises
        InvalidDraft, InvalidSettings for a template that cannot be used, MessageNotFound,
        StoreUnavailable, and TooLate once it is being sent or has ended.
        """
        return self._app.changes.update(id_of(message_id), body=body, template=template, data=data)

    # Decide about what failed or is held, about recipients and about windows.

    def retry(self, message_id: UUID | str, *, perhaps_sent: bool = False) -> Message:
        """Give a failed message another round of tries, as many as its channel says. Return it.

        It is due at once; it has kept its place, and the limits guard it as ever. Where nobody
        knows what came of its last try and its ``on_unknown`` is ``hold``, ``perhaps_sent`` must
        say that it may go out twice. Raises MessageNotFound, InvalidValue, UnknownChannel,
        Suppressed, and TooLate where it has not failed, or is past its expiry.
        """
        return self._app.failed.retry(id_of(message_id), perhaps_sent=perhaps_sent)

    def retry_many(
        self, message_ids: Sequence[UUID | str], *, perhaps_sent: bool = False
    ) -> list[Message | DispatcherError]:
        """Give what of these has failed another round of tries, in batches.

        Return for each the message, or the error that :meth:`retry` would raise. Raises
        InvalidDraft for what is no id; StoreUnavailable: some are tried again then, and doing it
        again is fine.
        """
        ids = [id_of(each) for each in message_ids]
        return self._app.failed.retry_many(ids, perhaps_sent=perhaps_sent)

    def release(self, message_id: UUID | str) -> Message:
        """Let a held message be sent, perhaps once more. Return it, due at once.

        One more try is allowed where its tries were used up. Past its expiry it ends as expired.
        Raises MessageNotFound, Suppressed, and TooLate where it is not held.
        """
        return self._app.held.release(id_of(message_id))

    def drop(self, message_id: UUID | str) -> Message:
        """Give a held message up. Return it: it ends as failed.

        It keeps its place in the windows, because it may have been sent. Raises MessageNotFound,
        and TooLate where it is not held.
        """
        return self._app.held.drop(id_of(message_id))

    def suppress(self, recipient: str, *, channel: str | None = None) -> int:
        """Send a recipient nothing any more, on one channel or on all; return how many it spares.

        From now on a submit to it raises Suppressed, and what is scheduled is cancelled, its quota
        free again at once. A submit that looked a moment ago may still store its message: it is
        cancelled when it is due, and so is what comes back from a retry. Only what is being sent
        right now may still go out, and what is held stays held; releasing it raises Suppressed.
        Every spelling that channels have for the recipient opts out. Doing it again is fine.

        Raises InvalidDraft, UnknownChannel, and StoreUnavailable: do it again then.
        """
        return self._app.suppressing.suppress(recipient, channel)

    def unsuppress(self, recipient: str, *, channel: str | None = None) -> tuple[Suppression, ...]:
        """Take back what :meth:`suppress` said with the same parameters. What it cancelled stays.

        Return what still holds for the recipient: who opted out of everything and of one channel
        must be taken back from both. Raises InvalidDraft and StoreUnavailable.
        """
        return self._app.suppressing.unsuppress(recipient, channel)

    def suppressed(self, recipient: str | None = None) -> Iterator[Suppression]:
        """Yield who gets nothing, or what holds for one recipient, in the order of recipients.

        They are read while the answer is, some hundreds at a time. Raises StoreUnavailable.
        """
        return self._app.suppressing.suppressed(recipient)

    def verify_windows(self) -> Verified:
        """Compare the windows in Redis with the store; return every difference.

        Submits may go on meanwhile. Raises ReservationsUnavailable and StoreUnavailable.
        """
        return self._app.verification.verify()

    def rebuild_windows(
        self, shards: Collection[int] | None = None, *, progress: OnRows | None = None
    ) -> tuple[int, ...]:
        """Close shards of the windows (default: all) and fill them again from the store.

        A few at a time; while one is closed, submits to it raise ReservationsUnavailable with
        ``retry_after``. ``progress`` is called with how many rows have been read and how many
        there are to read. Return the shards that were rebuilt; those missing are being rebuilt by
        another process. Raises InvalidValue, ReservationsUnavailable and StoreUnavailable; then
        the sweep rebuilds what is still closed.
        """
        return self._app.reconciler.rebuild(shards, progress=progress)

    # Look. Nothing here books, stores or sends.

    def get(self, message_id: UUID | str) -> Message:
        """Return a message. Raises MessageNotFound."""
        return self._app.messages.get(id_of(message_id))

    def attempts(self, message_id: UUID | str) -> list[Attempt]:
        """Return the tries of a message, first one first; none for an unknown id."""
        return self._app.messages.attempts(id_of(message_id))

    def story(self, message_id: UUID | str) -> Story:
        """Return everything that is known of a message: its tries, its places, what comes next.

        Raises MessageNotFound and StoreUnavailable.
        """
        return self._app.telling.story(id_of(message_id))

    def held(self, *, limit: int = 100) -> list[Message]:
        """Return the messages that are held, oldest first: nobody knows whether they were sent.

        ``next_attempt_at`` tells since when they are held.
        """
        _check_limit(limit)
        return self._app.held.find(at_most=limit)

    def count(self, **wanted: Unpack[Wanted]) -> int:
        """Return how many messages match all that is said (:class:`~dispatcher.Wanted`).

        What changes meanwhile may be missed. Raises InvalidDraft and StoreUnavailable, and
        TypeError for a filter that does not exist, as :meth:`select` and :meth:`list` do.
        """
        return self._app.listing.count(self._chosen(wanted))

    def select(self, *, oldest_first: bool = False, **wanted: Unpack[Wanted]) -> Iterator[Message]:
        """Yield the messages that match all that is said (:class:`~dispatcher.Wanted`).

        Newest first, or oldest first; without those made after the call. They are read while the
        answer is, some hundreds at a time, so any number may be yielded. Raises InvalidDraft, and
        StoreUnavailable on the way.
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

        Books nothing. Give a recipient or a scope, and what else of :meth:`submit` counts: without
        a channel, its quotas and quiet hours do not. Raises InvalidDraft and
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
        """Return what decides about the times of a scope, from ``start`` (default: now) on.

        Booked times, how full each quota is and where it refuses, quiet hours, the next slots.
        ``channel``, ``scopes`` and ``zone`` count as for :meth:`submit`; with ``kind`` the scope is
        one of that kind, such as a tenant, looked at alone. Without a scope, the ``channel`` as a
        whole is looked at, or the ``scopes``. ``length`` is at most 366 days.
        Raises InvalidDraft and ReservationsUnavailable.
        """
        return self._app.outlook.timeline(
            scope,
            channel=channel,
            scopes=scopes,
            zone=zone,
            kind=kind,
            start=start,
            length=length,
        )

    def status(self, *, since: timedelta = timedelta(days=1)) -> Overview:
        """Return how things stand: counts, what is overdue, the next hour, limits, who is at work.

        What has ended counts if it did so within ``since``. Where Redis does not answer, what only
        Redis knows is None. Raises InvalidValue and StoreUnavailable.
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
        """Return the busiest scopes, recipients or channels, by what is due ``within`` that time.

        Each with the quota that is nearest to full; ``by="fill"`` sorts by that, among the 50 with
        most messages. Raises InvalidValue and StoreUnavailable.
        """
        return self._app.overviews.tops(of, within=within, limit=limit, by=by)

    # Below this method the name no longer means the built-in list, so what returns one is above.
    def list(
        self, *, limit: int = 50, after: UUID | str | None = None, **wanted: Unpack[Wanted]
    ) -> Page:
        """Return a page of the messages that match all that is said, newest first.

        See :class:`~dispatcher.Wanted` for what can be said. ``limit`` is at most 10,000. The
        page's ``after`` reads on behind it. Raises InvalidDraft and StoreUnavailable.
        """
        _check_limit(limit)
        place = None if after is None else id_of(after, "after")
        return self._app.listing.page(self._chosen(wanted), after=place, at_most=limit)

    def _chosen(self, wanted: Wanted) -> Selection:
        """Judge what is said of messages, and spell the recipient as it is stored.

        A kind of scope that nothing counts against is refused.
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

    # The same, awaited.

    asubmit = awaited(submit)
    """Await :meth:`submit`, made by a thread, so that the loop goes on.

    Also :meth:`asubmit_many`, :meth:`acancel`, :meth:`areschedule` and :meth:`aget`, with the
    parameters, answers and errors of those that they are named for. At most eight such calls are
    made at a time; further ones wait. ``session`` is refused: see docs/transactions.md.

    A call that is cancelled before its turn is not made. One that is under way goes on, and its
    answer is read by the idempotency key: submit again with the same one, and it is the same
    message. :meth:`close` and :meth:`aclose` wait for calls under way.
    """

    asubmit_many = awaited(listed(submit_many))
    """Await :meth:`submit_many`. The answer is a list, whatever the drafts come in."""

    acancel = awaited(cancel)
    """Await :meth:`cancel`."""

    areschedule = awaited(reschedule)
    """Await :meth:`reschedule`."""

    aget = awaited(get)
    """Await :meth:`get`."""


def _overridden(drafts: Iterable[Draft], on_conflict: OnConflict | None) -> Iterable[Draft]:
    if on_conflict is None:
        return drafts
    return (
        replace(each, on_conflict=on_conflict) if isinstance(each, Draft) else each
        for each in drafts
    )


def _check_limit(limit: object) -> None:
    """Raise InvalidDraft unless so many messages can be returned at once."""
    if not isinstance(limit, int) or not 1 <= limit <= _MOST_FOUND:
        raise InvalidDraft("limit", quoted(limit), f"1 to {_MOST_FOUND}")
