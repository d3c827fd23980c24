"""The front door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from dispatcher.errors import DispatcherError
from dispatcher.message import Draft, Message, OnConflict, OnUnknown, Plan
from dispatcher.operation import Deciding, Looking, SendTime, awaited, id_of, listed
from dispatcher.submission import OnProgress, Result, Unread, Wish

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


class Dispatcher(Looking, Deciding):
    """Submits messages, looks them up, changes and cancels them.

    ``settings`` default to those of the environment and ``dispatcher.toml``; see
    :class:`~dispatcher.settings.Settings`. Nothing connects before the first call. One instance
    may be shared by threads; after a fork make a new one. Use it as a context manager, or call
    :meth:`close`; in a coroutine with ``async with``, or :meth:`aclose`.
    """

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

    def cancel(self, message_id: UUID | str) -> Message:
        """Cancel a scheduled message; its quota is free again at once. Return it.

        Once this returns, the message is never sent. Cancelling it again is fine. Raises
        MessageNotFound, and TooLate once it is being sent, is held or has ended.
        """
        return self._parts.changes.cancel(id_of(message_id))

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
        return self._parts.changes.reschedule(id_of(message_id), wish)

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
        return self._parts.changes.reschedule_many([id_of(each) for each in message_ids], wish)

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
        return self._parts.changes.update(
            id_of(message_id), body=body, template=template, data=data
        )

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

    aget = awaited(Looking.get)
    """Await :meth:`get`."""


def _overridden(drafts: Iterable[Draft], on_conflict: OnConflict | None) -> Iterable[Draft]:
    if on_conflict is None:
        return drafts
    return (
        replace(each, on_conflict=on_conflict) if isinstance(each, Draft) else each
        for each in drafts
    )
