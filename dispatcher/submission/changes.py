"""Change what was accepted: cancel, reschedule, update. The row decides every race."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dispatcher.clock import Clock
from dispatcher.errors import (
    InvalidDraft,
    NoPlace,
    ReservationsUnavailable,
    StoreUnavailable,
    TooLate,
    UnknownChannel,
)
from dispatcher.faults import fault
from dispatcher.journal import Journal, Transition
from dispatcher.message import Draft, Message, OnConflict, Status, check_body
from dispatcher.reservation import Blocked, Moving, Terms, Windows
from dispatcher.scope import NOBODY, counted
from dispatcher.sendtime import to_ms
from dispatcher.settings import Settings
from dispatcher.store import Messages, Movable
from dispatcher.submission.handover import Handover
from dispatcher.submission.schedule import (
    Check,
    Fill,
    ValidDraft,
    judge_times,
    no_check,
    no_templates,
    schedule,
)

log = logging.getLogger(__name__)

_TRIES = 10
_BETWEEN_TRIES_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Another time for a message. The fields are those of ``Dispatcher.reschedule``."""

    send_at: datetime | str | None = None
    send_in: timedelta | None = None
    zone: str | None = None
    fold: int | None = None
    on_conflict: OnConflict = "reject"
    latest: datetime | str | None = None
    expires_at: datetime | str | None = None
    expire_after: timedelta | None = None


class Changes:
    """The use cases of those who have second thoughts."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        windows: Windows,
        messages: Messages,
        handover: Handover,
        journal: Journal,
        check: Check = no_check,
        fill: Fill = no_templates,
    ) -> None:
        self._settings = settings
        self._fill = fill
        # The sweep confirms an old place after the whole grace, and sees by then what changed late.
        self._within = settings.reconcile_grace / 2
        self._clock = clock
        self._windows = windows
        self._messages = messages
        self._handover = handover
        self._journal = journal
        self._check = check

    def cancel(self, message_id: UUID) -> Message:
        """Cancel a scheduled message and give its place back at once.

        Cancelling a cancelled message is fine. Raises MessageNotFound, and TooLate once the
        message is being sent or has ended.
        """
        message = self._messages.cancel(message_id)
        if message.status is not Status.CANCELLED:
            raise TooLate(message_id, message.status)
        self._journal.tell(Transition.CANCELLED, message)
        fault("cancel.after_row")
        self._free(message)
        return message

    def _free(self, message: Message) -> None:
        try:
            self._windows.release(message.id, self._scopes_of(message))
        except ReservationsUnavailable as error:
            log.warning("message %s: cancelled, its place is freed later: %s", message.id, error)

    def update(
        self,
        message_id: UUID,
        *,
        body: Mapping[str, Any] | None = None,
        template: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Message:
        """Give a scheduled message another body, or one that a template of its channel makes.

        Raises InvalidDraft, InvalidSettings, MessageNotFound, TooLate, StoreUnavailable.
        """
        message = self._messages.get(message_id)
        if template is not None and message.channel not in self._settings.channels:
            raise UnknownChannel(message.channel, sorted(self._settings.channels))
        draft = Draft(
            channel=message.channel,
            recipient=message.recipient,
            body=body,
            template=template,
            data=data,
        )
        clean, _ = check_body(
            self._fill(draft).body,
            max_bytes=self._settings.body_max_bytes,
            max_depth=self._settings.body_max_depth,
        )
        self._check(message.channel, message.recipient, clean)
        for _ in range(_TRIES):
            message = self._messages.update(message_id, body=clean)
            if message.body == clean:
                return message
            if message.status is not Status.SCHEDULED:
                raise TooLate(message_id, message.status)
        raise StoreUnavailable("others changed the message again and again")

    def reschedule(self, message_id: UUID, wish: Wish) -> Message:
        """Move a scheduled message to another time, judged as if it had no place yet.

        The new place is held, then the row changed, then the old place freed: whatever dies in
        between, reconcile makes the windows agree with the row. Raises MessageNotFound, TooLate,
        InvalidSendTime, QuotaExceeded, QuietHours, ReservationsUnavailable: then nothing has
        changed; StoreUnavailable: the message has the old time or the new one.
        """
        for _ in range(_TRIES):
            found = self._messages.movable(message_id)
            message = found.message
            if message.status is not Status.SCHEDULED:
                raise TooLate(message_id, message.status)
            if message.scope == NOBODY:
                raise InvalidDraft("id", "it is a status message, which has no place", "another")
            now = self._clock.now()
            draft = _draft(message, wish)
            valid = schedule(draft, settings=self._settings, now=now)
            if draft.expire_after is None:  # a message keeps its word, the channel's may be new
                valid = valid._replace(expire_after=None)
            judge_times(valid, now=now)
            moved = self.move(found, valid)
            if moved is not None:
                self._journal.tell(Transition.RESCHEDULED, moved, send_at=moved.send_at)
                self._handover.enqueue(moved)
                return moved
        raise StoreUnavailable("others changed the message again and again")

    def move(
        self, found: Movable, valid: ValidDraft, *, asked_at: datetime | None = None
    ) -> Message | None:
        """Return the moved message, or None when somebody else changed it meanwhile.

        ``valid`` is what it is to be, ``asked_at`` the time that somebody once asked for, where
        that is not the time in ``valid``. Raises like :meth:`reschedule`.
        """
        message = found.message
        asked_at = asked_at or valid.send_at
        if (valid.send_at, valid.zone) == (message.send_at, message.zone):
            now = self._change_row(found, message.send_at, valid, asked_at)
            return now.message if _is_as_wanted(now.message, message.send_at, valid) else None
        moving = self._windows.move(
            message.id, terms=valid.terms, send_at=valid.send_at, latest=valid.latest
        )
        fault("reschedule.after_hold")
        try:
            now = self._change_row(found, moving.send_at, valid, asked_at)
        except StoreUnavailable as error:
            # Unless the database refused, the row may have changed: reconcile finds out.
            if error.refused:
                self._drop(moving)
            raise
        if now.message.send_at == moving.send_at:  # also where somebody has changed it since
            fault("reschedule.after_row")
            self._take(moving, now.token, message)
            fault("reschedule.after_take")
            self._not_cancelled(message.id)
        else:
            self._drop(moving)
        return now.message if _is_as_wanted(now.message, moving.send_at, valid) else None

    def _not_cancelled(self, message_id: UUID) -> None:
        """Free the new place of a message that was cancelled while it moved; raise TooLate."""
        now = self._messages.get(message_id)
        if now.status is Status.CANCELLED:
            self._free(now)
            raise TooLate(message_id, now.status)

    def _change_row(
        self, found: Movable, send_at: datetime, valid: ValidDraft, asked_at: datetime
    ) -> Movable:
        return self._messages.move(
            found,
            within=self._within,
            send_at=send_at,
            zone=valid.zone,
            expires_at=valid.expiry(send_at),
            expire_after=valid.expire_after,
            asked_at=asked_at if asked_at != send_at else None,
            enqueue_at=self._handover.enqueue_at(send_at),
        )

    def _take(self, moving: Moving, token: int, before: Message) -> None:
        """Take a held place, or go back to the old one where another message got it.

        Raises NoPlace when the row has its time from ``before`` again.
        """
        blocked = self._taken(moving, token)
        if blocked is not None and self._is_back(moving, before):
            at_ms = to_ms(moving.send_at)
            raise self._windows.refusal(moving.terms, at_ms, blocked, before.id)

    def _taken(self, moving: Moving, token: int) -> Blocked | None:
        """Take a held place, held anew where the windows have lost it; say why that cannot be.

        What is left undone here is left to reconcile, and until then both places stay taken.
        """
        reason = "it was lost again and again"
        for _ in range(_TRIES):
            try:
                if self._windows.take(moving, token=token):
                    return None
                again = self._windows.hold_again(moving)
            except ReservationsUnavailable as error:
                reason = str(error)
                self._clock.sleep(_BETWEEN_TRIES_SECONDS)
                continue
            if isinstance(again, Blocked):
                return again
            moving = again
            now = self._messages.movable(moving.message_id)
            if now.message.send_at != moving.send_at:  # somebody has moved it further
                self._drop(moving)
                return None
            token = now.token
        log.warning(
            "message %s: moved, its places are put right later: %s", moving.message_id, reason
        )
        return None

    def _is_back(self, moving: Moving, before: Message) -> bool:
        """Return a message to its old time where that is free; tell whether it has that time."""
        reason = "its time was changed again and again"
        for _ in range(_TRIES):
            now = self._messages.movable(before.id)
            if now.message.send_at != moving.send_at:
                self._drop(moving)
                return now.message.send_at == before.send_at
            try:
                back = self._windows.move(
                    before.id,
                    terms=self._scopes_of(before),
                    send_at=before.send_at,
                    beside=moving,
                )
            except (NoPlace, ReservationsUnavailable) as error:
                reason = str(error)
                break
            now = self._messages.move(
                now,
                within=self._within,
                send_at=before.send_at,
                next_attempt_at=before.next_attempt_at,
                zone=before.zone,
                expires_at=before.expires_at,
                expire_after=before.expire_after,
                asked_at=before.asked_at,
                enqueue_at=self._handover.enqueue_at(before.next_attempt_at),
            )
            if now.message.send_at == before.send_at:
                self._taken(back, now.token)
                self._drop(moving)
                self._handover.enqueue(now.message)  # its task may have come meanwhile, in vain
                return True
            self._drop(back)
        log.warning("message %s: kept at a time without a place: %s", before.id, reason)
        return False

    def _drop(self, moving: Moving) -> None:
        try:
            self._windows.drop(moving)
        except ReservationsUnavailable as error:
            log.warning("message %s: a held place is freed later: %s", moving.message_id, error)

    def _scopes_of(self, message: Message) -> Terms:
        kinds = self._settings.quotas_of
        return Terms(
            counted(kinds, scope=message.scope, channel=message.channel, scopes=message.scopes),
            message.zone or self._settings.zone,
        )


def _is_as_wanted(message: Message, send_at: datetime, valid: ValidDraft) -> bool:
    wanted = (send_at, valid.zone, valid.expiry(send_at), valid.expire_after)
    return wanted == (message.send_at, message.zone, message.expires_at, message.expire_after)


def _draft(message: Message, wish: Wish) -> Draft:
    expires_at, expire_after = wish.expires_at, wish.expire_after
    if expires_at is None and expire_after is None:
        expire_after = message.expire_after
        expires_at = message.expires_at if expire_after is None else None
    return Draft(
        channel=message.channel,
        recipient=message.recipient,
        body=message.body,
        send_at=wish.send_at,
        send_in=wish.send_in,
        zone=message.zone if wish.zone is None else wish.zone,
        fold=wish.fold,
        scope=message.scope,
        scopes=message.scopes,
        expires_at=expires_at,
        expire_after=expire_after,
        on_conflict=wish.on_conflict,
        latest=wish.latest,
        quiet_hours=message.quiet_hours,
    )
