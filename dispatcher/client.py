"""The front door."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload
from uuid import UUID

from dispatcher import sendtime
from dispatcher.bootstrap import Parts
from dispatcher.clock import Clock
from dispatcher.errors import InvalidDraft
from dispatcher.message import (
    Attempt,
    Draft,
    Message,
    OnConflict,
    OnUnknown,
    Plan,
    Status,
    check_text,
)
from dispatcher.reservation import Timeline
from dispatcher.settings import Settings
from dispatcher.submission import OnProgress, Result, Unread, Wish, terms_for
from dispatcher.sweep import OnRows
from dispatcher.verification import Verified

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

SendTime = datetime | str

_MOST_FOUND = 10_000


class Dispatcher:
    """Submits messages, looks them up and cancels them.

    ``settings`` default to those of the environment and ``dispatcher.toml``; see
    :class:`~dispatcher.settings.Settings`. Nothing connects before the first call. One instance
    may be shared by threads; after a fork make a new one. Use it as a context manager, or call
    :meth:`close`.
    """

    def __init__(self, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        self.settings = settings if settings is not None else Settings.load()
        self._parts = Parts(self.settings, clock)

    def submit(
        self,
        *,
        channel: str,
        recipient: str,
        body: Mapping[str, Any],
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
        session: Session | Connection | None = None,
    ) -> Message:
        """Accept a message for a future time, if it fits every quota. Return it.

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
        :meth:`release` or :meth:`drop`; by default the channel says which.

        Once this returns, the message ends as sent, failed, expired or cancelled, whatever
        process dies, or is held where it is to be. When it raises, nothing is reserved or stored
        (except OutcomeUnknown).

        With ``session``, a SQLAlchemy Session or Connection on the dispatcher's database, the
        message is stored in its transaction: it commits or rolls back with the caller's own rows,
        and the promise above holds from the commit on. Its place is reserved until then, given back
        on rollback; it is handed over after the commit. See docs/transactions.md.

        Raises:
            InvalidDraft: a parameter was refused (InvalidSendTime, UnknownChannel).
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
        )
        if session is not None:
            return self._parts.joined.submit(draft, session)
        return self._parts.submission.submit(draft)

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
        bulk = self._parts.bulk
        if atomic:
            return bulk.submit_all(list(every), progress=progress)
        total = len(drafts) if isinstance(drafts, Sized) else None
        if isinstance(drafts, Sequence):
            return list(bulk.submit_each(every, total=total, progress=progress, ahead=True))
        return Unread(bulk.submit_each(every, total=total, progress=progress))

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
        return self._parts.planning.plan(every, total=total, progress=progress)

    def get(self, message_id: UUID | str) -> Message:
        """Return a message. Raises MessageNotFound."""
        return self._parts.messages.get(_id(message_id))

    def attempts(self, message_id: UUID | str) -> list[Attempt]:
        """Return the tries of a message, first one first; none for an unknown id."""
        return self._parts.messages.attempts(_id(message_id))

    def find(
        self,
        *,
        status: Status | str | None = None,
        recipient: str | None = None,
        channel: str | None = None,
        at_most: int = 100,
    ) -> list[Message]:
        """Return the messages that match every filter given, newest first."""
        _check_at_most(at_most)
        if status is not None:
            try:
                status = Status(status)
            except ValueError:
                known = ", ".join(Status)
                raise InvalidDraft("status", f"there is no status {status!r}", known) from None
        if recipient is not None:
            check_text("recipient", recipient)
        if channel is not None:
            check_text("channel", channel)
        return self._parts.messages.find(
            status=status, recipient=recipient, channel=channel, at_most=at_most
        )

    def cancel(self, message_id: UUID | str) -> Message:
        """Cancel a scheduled message; its quota is free again at once. Return it.

        Once this returns, the message is never sent. Cancelling it again is fine. Raises
        MessageNotFound, and TooLate once it is being sent, is held or has ended.
        """
        return self._parts.changes.cancel(_id(message_id))

    def reschedule(
        self,
        message_id: UUID | str,
        *,
        send_at: SendTime | None = None,
        send_in: timedelta | None = None,
        zone: str | None = None,
        fold: int | None = None,
        on_conflict: OnConflict = "reject",
        latest: SendTime | None = None,
        expires_at: SendTime | None = None,
        expire_after: timedelta | None = None,
    ) -> Message:
        """Move a scheduled message to another time, judged as if it had no place yet. Return it.

        The parameters are those of :meth:`submit`. ``zone`` defaults to the message's; one that is
        given becomes the message's, and later moves are judged by it. An ``expires_at`` stays and
        an ``expire_after`` moves along, unless one of them is given. The old place is free once
        this returns. A refused move changes nothing.

        Raises InvalidDraft, QuotaExceeded, QuietHours, MessageNotFound, ReservationsUnavailable;
        TooLate once it is being sent or has ended; StoreUnavailable: it has the old time or the
        new one.
        """
        wish = Wish(
            send_at=send_at,
            send_in=send_in,
            zone=zone,
            fold=fold,
            on_conflict=on_conflict,
            latest=latest,
            expires_at=expires_at,
            expire_after=expire_after,
        )
        return self._parts.changes.reschedule(_id(message_id), wish)

    def update(self, message_id: UUID | str, *, body: Mapping[str, Any]) -> Message:
        """Give a scheduled message another body. Return it.

        Raises InvalidDraft, MessageNotFound, StoreUnavailable, and TooLate once it is being sent
        or has ended.
        """
        return self._parts.changes.update(_id(message_id), body=body)

    def held(self, *, at_most: int = 100) -> list[Message]:
        """Return the messages that are held, oldest first: nobody knows whether they were sent.

        ``next_attempt_at`` tells since when they are held.
        """
        _check_at_most(at_most)
        return self._parts.held.find(at_most=at_most)

    def release(self, message_id: UUID | str) -> Message:
        """Let a held message be sent, perhaps once more. Return it, due at once.

        One more try is allowed where its tries were used up. Past its expiry it ends as expired.
        Raises MessageNotFound, and TooLate where it is not held.
        """
        return self._parts.held.release(_id(message_id))

    def drop(self, message_id: UUID | str) -> Message:
        """Give a held message up. Return it: it ends as failed.

        It keeps its place in the windows, because it may have been sent. Raises MessageNotFound,
        and TooLate where it is not held.
        """
        return self._parts.held.drop(_id(message_id))

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
        name = scope if scope is not None else recipient
        if name is None:
            raise InvalidDraft("recipient", "neither recipient nor scope given", "one of them")
        terms = terms_for(
            self.settings,
            scope=check_text("scope" if scope is not None else "recipient", name),
            channel=channel,
            scopes=scopes,
            zone=zone,
            quiet_hours=quiet_hours,
            send_window=send_window,
        )
        now = self._parts.clock.now()
        if after is None:
            start = sendtime.after(timedelta(0), now=now)
        else:
            start = sendtime.parse(after, zone=zone, fold=fold, field="after")
            farthest = self.settings.max_horizon
            sendtime.check_range(start, now=now, farthest=farthest, field="after")
        return self._parts.windows.next_slot(terms, start)

    def timeline(
        self,
        scope: str,
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
        one of that kind, such as a tenant, looked at alone. ``length`` is at most 366 days.
        Raises InvalidDraft and ReservationsUnavailable.
        """
        return self._parts.outlook.timeline(
            scope,
            channel=channel,
            scopes=scopes,
            zone=zone,
            kind=kind,
            start=start,
            length=length,
        )

    def verify_windows(self) -> Verified:
        """Compare the windows in Redis with the store; return every difference.

        Submits may go on meanwhile. Raises ReservationsUnavailable and StoreUnavailable.
        """
        return self._parts.verification.verify()

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
        return self._parts.sweep.rebuild(shards, progress=progress)

    def close(self) -> None:
        """Close the connections."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _overridden(drafts: Iterable[Draft], on_conflict: OnConflict | None) -> Iterable[Draft]:
    if on_conflict is None:
        return drafts
    return (
        replace(each, on_conflict=on_conflict) if isinstance(each, Draft) else each
        for each in drafts
    )


def _check_at_most(at_most: object) -> None:
    if not isinstance(at_most, int) or not 1 <= at_most <= _MOST_FOUND:
        raise InvalidDraft("at_most", repr(at_most), f"1 to {_MOST_FOUND}")


def _id(value: UUID | str) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidDraft("id", f"{str(value)[:40]!r} is no message id", "a UUID") from None
