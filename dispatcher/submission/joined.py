"""Submit in a transaction of the caller's: the message is stored if and when that commits.

What is reserved meanwhile is settled when the transaction has ended, by what the store then has.
Between the insert and that end nothing else is asked of the store: on SQLite the caller's
transaction keeps everybody else from writing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    NoPlace,
    ReservationsUnavailable,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.faults import fault
from dispatcher.message import Draft, Message
from dispatcher.reservation import Booking, Reserved, Upkeep, Windows
from dispatcher.settings import Settings
from dispatcher.store import Joinable, JoinedMessages, JoinedTransaction
from dispatcher.submission.handover import Handover
from dispatcher.submission.schedule import ValidDraft, judge_times
from dispatcher.submission.submission import Submission, repeated
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.telemetry.tracing import Tracing, traced
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

_TRIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """A message that is stored once the caller's transaction commits, and its place."""

    message: Message
    booking: Booking
    reserved_at: float


_Transaction = JoinedTransaction[_Joined]


class JoinedSubmission:
    """The use case of those who submit in a transaction of their own.

    What it leaves when its process dies at any line is healed by the sweep, like what a plain
    submit leaves. Until ``transaction_grace`` and ``reconcile_grace`` have passed, the sweep takes
    no reservation of an open transaction for an orphan's.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        windows: Windows,
        upkeep: Upkeep,
        store: JoinedMessages,
        handover: Handover,
        submission: Submission,
        journal: Journal,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._windows = windows
        self._upkeep = upkeep
        self._store = store
        self._handover = handover
        self._submission = submission
        self._journal = journal
        self._tracing = tracing

    def submit(self, draft: Draft, session: Joinable) -> Message:
        """Accept ``draft`` if the caller commits: schedule, join, reserve, add.

        Raises like :meth:`Submission.submit`, but never OutcomeUnknown; then nothing is reserved or
        stored, and the caller's transaction is as it was before.
        """
        try:
            return traced(self._tracing, lambda: self._submit(draft, session))
        except DispatcherError as error:
            self._journal.refused(error)
            raise

    def _submit(self, draft: Draft, session: Joinable) -> Message:
        now = self._clock.now()
        valid = self._submission.scheduled(draft, now=now)
        transaction = self._store.join(session, self._settle)
        self._give_back_undone(transaction)
        known = _known(valid, transaction)
        if known is not None:
            return known
        judge_times(valid, now=now)
        reserved_at = self._clock.monotonic()
        try:
            grace = self._settings.transaction_grace
            booking = self._submission.reserve(valid, pending_ahead=grace)
        except NoPlace:
            known = _known(valid, transaction)
            if known is None:
                transaction.check_wanted(valid.recipient, valid.channel)
                raise
            return known
        fault("joined.after_reserve")
        message = self._submission.message(valid, booking.message_id, booking.send_at)
        joined = _Joined(message, booking, reserved_at)
        transaction.watch.joined.append(joined)
        try:
            stored = self._add(valid, message, transaction)
        except (StoreUnavailable, IdempotencyConflict, Suppressed):
            self._forget(joined, transaction)
            raise
        fault("joined.after_add")
        if stored.id != message.id:
            self._forget(joined, transaction)
        return stored

    def _add(self, valid: ValidDraft, message: Message, transaction: _Transaction) -> Message:
        """Store ``message`` and return it, or what has its key."""
        enqueue_at = self._handover.enqueue_at(message.send_at, now=message.created_at)
        for _ in range(_TRIES):
            if transaction.add(
                message,
                enqueue_at=enqueue_at,
                fingerprint=valid.fingerprint,
                status_url=valid.status_url,
            ):
                return message
            known = _known(valid, transaction)
            if known is not None:
                return known
        raise StoreUnavailable("its id, or its idempotency key, was taken again and again")

    def _forget(self, joined: _Joined, transaction: _Transaction) -> None:
        transaction.watch.joined.remove(joined)
        self._submission.withdraw(joined.booking)

    def _give_back_undone(self, transaction: _Transaction) -> None:
        """Free the places of messages that a savepoint took away, which else block this one."""
        watch = transaction.watch
        if not watch.undone or not watch.joined:
            return
        present = transaction.present([each.message.id for each in watch.joined])
        for each in [each for each in watch.joined if each.message.id not in present]:
            self._forget(each, transaction)
        watch.undone = False

    def _settle(self, joined: Sequence[_Joined], is_certain: bool) -> None:
        """Do what is due once the transaction has ended, by what of it is stored."""
        if not joined:
            return
        fault("joined.after_commit")
        try:
            found = self._store.stored([each.message.id for each in joined])
        except StoreUnavailable as error:
            log.warning("%d messages, if stored, are enqueued later: %s", len(joined), error)
            return
        stored = [each for each in joined if each.message.id in found]
        accepted = [each.message for each in stored]
        for message in accepted:
            self._journal.tell(Transition.SCHEDULED, message, send_at=message.send_at)
        self._handover.enqueue(*accepted)
        fault("joined.after_enqueue")
        late = self._clock.monotonic() - self._settings.settle.total_seconds()
        try:
            for each in stored:
                if each.reserved_at < late:
                    self._look_again(each)
            if is_certain:
                for each in joined:
                    if each.message.id not in found:
                        self._windows.withdraw(each.booking)
        except ReservationsUnavailable as error:
            log.warning("the places of %d messages are settled later: %s", len(joined), error)

    def _look_again(self, joined: _Joined) -> None:
        """Make sure that the place is still there, because the transaction took long.

        It may have outlasted the grace, or the windows were rebuilt meanwhile. The message is
        committed, so it keeps its time even where another has taken the place.
        """
        message, booking = joined.message, joined.booking
        try:
            self._windows.reserve(
                message.id, terms=booking.terms, send_at=message.send_at, submit=booking.submit
            )
        except (NoPlace, IdempotencyConflict) as error:
            log.error(  # noqa: TRY400 - where it was raised tells nothing
                "message %s was committed after its place was lost, and another has it now; "
                "it keeps its time: %s", message.id, type(error).__name__,
            )  # fmt: skip
            self._put_back(joined)
        except ReservationsUnavailable:
            self._put_back(joined)  # also while windows are rebuilt: the store has the message

    def _put_back(self, joined: _Joined) -> None:
        message, terms = joined.message, joined.booking.terms
        self._upkeep.put_back([Reserved(message.id, terms.scopes, message.send_at)])


def _known(valid: ValidDraft, transaction: _Transaction) -> Message | None:
    if valid.idempotency_key is None:
        return None
    return repeated(valid, transaction.with_key(valid.idempotency_key))
