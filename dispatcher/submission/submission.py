"""Submit: schedule, reserve, add, enqueue."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidDraft,
    NoPlace,
    OutcomeUnknown,
    ReservationsUnavailable,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.faults import fault
from dispatcher.message import Draft, Message, Status, new_id
from dispatcher.reservation import Booking, Submit, Windows
from dispatcher.settings import Settings
from dispatcher.store import GivenUp, Messages, Suppressions
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
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.telemetry.tracing import Tracing, traced
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

LOOKING_SECONDS = 5.0
"""For how long a second look at a reservation waits for a Redis that does not answer."""
_BETWEEN_LOOKS_SECONDS = 0.5


class Submission:
    """The use cases of those who submit.

    What a submit leaves when its process dies at any line is healed by the sweep: a reservation
    without a message is released, a message that was not enqueued is handed over.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        windows: Windows,
        messages: Messages,
        suppressions: Suppressions,
        handover: Handover,
        journal: Journal,
        check: Check = no_check,
        fill: Fill = no_templates,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._windows = windows
        self._messages = messages
        self._suppressions = suppressions
        self._handover = handover
        self._journal = journal
        self._check = check
        self._fill = fill
        self._tracing = tracing

    def submit(self, draft: Draft) -> Message:
        """Accept ``draft``: schedule, reserve, add, enqueue.

        Raises InvalidDraft, Suppressed, QuotaExceeded, QuietHours, IdempotencyConflict,
        ReservationsUnavailable, StoreUnavailable: then nothing is reserved or stored; and
        OutcomeUnknown.
        """
        try:
            return traced(self._tracing, lambda: self._submit(draft))
        except DispatcherError as error:
            self._journal.refused(error)
            raise

    def _submit(self, draft: Draft) -> Message:
        now = self._clock.now()
        valid = self.scheduled(draft, now=now)
        known = self._known(valid)
        if known is not None:
            return known
        judge_times(valid, now=now)
        started = self._clock.monotonic()
        fault("submit.before_reserve")
        booking = self._place_or_twin(valid)
        if isinstance(booking, Message):
            return booking
        fault("submit.after_reserve")
        message, booking = self.store(valid, booking)
        fault("submit.after_commit")
        if message.id != booking.message_id:
            return message
        if self._clock.monotonic() - started > self._settings.settle.total_seconds():
            self.look_again(message, booking, until=self.last_look())
        self._journal.tell(Transition.SCHEDULED, message, send_at=message.send_at)
        self._handover.enqueue(message)
        fault("submit.after_enqueue")
        return message

    def scheduled(self, draft: Draft, *, now: datetime) -> ValidDraft:
        """Judge every field of ``draft``, as the transports that carry it and tell of it do, too.

        Raises InvalidDraft.
        """
        valid = schedule(self._fill(draft), settings=self._settings, now=now)
        self._check(valid.channel, valid.recipient, valid.body)
        if valid.status_url is not None:
            self._check_url(valid.status_url)
        return valid

    def _check_url(self, status_url: str) -> None:
        """Ask the transport of the status channel whether it could post there."""
        try:
            self._check(self._settings.status_channel, status_url, {})
        except InvalidDraft as refused:
            raise InvalidDraft("status_url", refused.problem, refused.accepted) from None

    def _known(self, draft: ValidDraft) -> Message | None:
        if draft.idempotency_key is None:
            return None
        return repeated(draft, self._messages.with_key(draft.idempotency_key))

    def _place_or_twin(self, draft: ValidDraft) -> Booking | Message:
        """Book a place; return its twin where that has been stored and is what is in the way."""
        try:
            return self.reserve(draft)
        except NoPlace:
            known = self._known(draft)
            if known is None:
                self._suppressions.check(draft.recipient, draft.channel)
                raise
            return known

    def reserve(self, draft: ValidDraft, *, pending_ahead: timedelta = timedelta(0)) -> Booking:
        """Book a place for a draft. Raises like :meth:`Windows.reserve`; then it has none."""
        submit = None
        if draft.idempotency_key is not None:
            submit = Submit(draft.idempotency_key, draft.fingerprint or "")
        message_id = new_id()
        try:
            return self._windows.reserve(
                message_id,
                terms=draft.terms,
                send_at=draft.send_at,
                latest=draft.latest,
                submit=submit,
                pending_ahead=pending_ahead,
            )
        except ReservationsUnavailable:
            # Only the reply may have been lost.
            self.withdraw(Booking(message_id, draft.terms, draft.send_at, submit))
            raise

    def message(
        self,
        draft: ValidDraft,
        message_id: UUID,
        send_at: datetime,
        created_at: datetime | None = None,
    ) -> Message:
        """Return the message that a booked draft becomes, created now if nothing else is said."""
        created_at = created_at or from_ms(to_ms(self._clock.now()))
        is_near = self._handover.is_near(send_at, now=created_at)
        return Message(
            id=message_id,
            channel=draft.channel,
            recipient=draft.recipient,
            scope=draft.scope,
            body=draft.body,
            send_at=send_at,
            next_attempt_at=send_at,
            expires_at=draft.expiry(send_at),
            status=Status.SCHEDULED,
            attempt_count=0,
            max_attempts=self._settings.channels[draft.channel].max_attempts,
            idempotency_key=draft.idempotency_key,
            created_at=created_at,
            finished_at=None,
            last_error=None,
            scopes=draft.scopes,
            zone=draft.zone,
            quiet_hours=draft.quiet_hours,
            on_unknown=draft.on_unknown,
            expire_after=draft.expire_after,
            asked_at=draft.send_at if draft.send_at != send_at else None,
            trace=None if self._tracing is None else self._tracing.current(),
            enqueued_at=created_at if is_near else None,
        )

    def store(
        self, draft: ValidDraft, booking: Booking, *, perhaps_stored: bool = False
    ) -> tuple[Message, Booking]:
        """Like :meth:`add`, with another place where the sweep has given this one back.

        That happens where this process stood still between the two. Return the message and its
        place. Raises like :meth:`add` and :meth:`reserve`.
        """
        try:
            return self.add(draft, booking, perhaps_stored=perhaps_stored), booking
        except GivenUp:
            self._free(booking)  # also what a twin may rely on: it is refused as well
            another = self._place_or_twin(draft)
            if isinstance(another, Message):
                return another, booking
            return self.add(draft, another), another

    def add(self, draft: ValidDraft, booking: Booking, *, perhaps_stored: bool = False) -> Message:
        """Store a booked draft and return what is stored, which may be its twin.

        Where nothing of it is stored, its place is given back. ``perhaps_stored`` tells that it
        was tried before, and that nobody knows what came of it: then the place stays unless the
        database answers, and OutcomeUnknown is raised.
        """
        message = self.message(draft, booking.message_id, booking.send_at)
        try:
            stored = self._messages.add(
                message,
                enqueue_at=self._handover.enqueue_at(message.send_at, now=message.created_at),
                fingerprint=draft.fingerprint,
                body_json=draft.body_json,
                status_url=draft.status_url,
            )
            if stored.id != message.id:
                self._known(draft)  # raises IdempotencyConflict where the content differs
                self.withdraw(booking)
        except OutcomeUnknown:
            raise  # the message may be stored: reconcile finds out whether its place is needed
        except (StoreUnavailable, IdempotencyConflict, Suppressed) as error:
            if perhaps_stored and isinstance(error, StoreUnavailable) and not error.refused:
                raise OutcomeUnknown(error.reason, message.id) from error
            self.withdraw(booking)
            raise
        return stored

    def withdraw(self, booking: Booking) -> None:
        """Give back what was booked for a message that is not stored, now or by reconcile."""
        try:
            self._windows.withdraw(booking)
        except ReservationsUnavailable as error:
            log.warning("message %s: its place is freed later: %s", booking.message_id, error)

    def look_again(
        self, message: Message, booking: Booking, *, until: float, keep: bool = False
    ) -> None:
        """Make sure that the place is still ours, because storing the message took long.

        The sweep may have given it up meanwhile, or rebuilt the windows before the message was in
        the store. Where Redis does not answer, it is asked again ``until`` a time of the monotonic
        clock. Raises NoPlace when another message has the place, ReservationsUnavailable when
        nobody can tell; then the message is taken back, unless it is already being sent, or to be
        kept; OutcomeUnknown where the database does not answer to that.
        """
        try:
            self._reserve_again(message, booking, until)
        except IdempotencyConflict as error:
            log.warning("message %s: its place is restored later: %s", message.id, error)
        except (NoPlace, ReservationsUnavailable) as error:
            if keep:
                log.warning("message %s: kept without a place of its own: %s", message.id, error)
            elif self._is_taken_back(message):
                self._free(booking)
                raise

    def last_look(self) -> float:
        """Return until when a second look that begins now waits for Redis."""
        return self._clock.monotonic() + LOOKING_SECONDS

    def _free(self, booking: Booking) -> None:
        """Free the places of a message that is not stored any more, or never will be."""
        try:
            self._windows.release(booking.message_id, booking.terms)
        except ReservationsUnavailable as error:
            log.warning("message %s: its place is freed later: %s", booking.message_id, error)

    def _is_taken_back(self, message: Message) -> bool:
        try:
            return self._messages.take_back(message)
        except StoreUnavailable as error:
            if not error.refused:  # it may be gone: nobody is told that it is accepted
                raise OutcomeUnknown(error.reason, message.id) from error
            log.warning("message %s: kept without a place of its own: %s", message.id, error)
            return False

    def _reserve_again(self, message: Message, booking: Booking, until: float) -> None:
        while True:
            try:
                self._windows.reserve(
                    message.id,
                    terms=booking.terms,
                    send_at=message.send_at,
                    submit=booking.submit,
                    is_stored=True,
                )
            except ReservationsUnavailable:
                if self._clock.monotonic() >= until:
                    raise
                self._clock.sleep(_BETWEEN_LOOKS_SECONDS)
            else:
                return


def repeated(draft: ValidDraft, found: tuple[Message, str] | None) -> Message | None:
    """Return the message that was stored under the draft's key, if one was found.

    ``found`` comes with its fingerprint. Raises IdempotencyConflict where the content differs.
    """
    if found is None:
        return None
    message, fingerprint = found
    if fingerprint != draft.fingerprint:
        raise IdempotencyConflict(draft.idempotency_key or "", message.id)
    return message
