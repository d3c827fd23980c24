"""Where accepted drafts go: a transaction of our own, one of the caller's, or nowhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import ClassVar
from uuid import UUID

from dispatcher.errors import (
    IdempotencyConflict,
    OutcomeUnknown,
    StoreUnavailable,
    Suppressed,
)
from dispatcher.faults import fault
from dispatcher.message import Message
from dispatcher.reservation import Copies
from dispatcher.settings import Settings
from dispatcher.store.lists import Suppressions
from dispatcher.store.messages import GivenUp, Messages
from dispatcher.store.outbox import JoinedMessages, JoinedTransaction
from dispatcher.submission.batch import (
    Batch,
    Entry,
    Known,
    compose,
    occupied,
    recalled,
)
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.reserver import Reserver
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

_TRIES = 3


@dataclass(kw_only=True)
class Sink:
    """The steps of the pipeline that depend on where messages are stored.

    All may raise StoreUnavailable.
    """

    reservations: Reserver | Copies
    grace: timedelta = timedelta(0)
    """How much longer than usual a reservation may wait for its row."""
    refuses_suppressed: ClassVar[bool] = False
    """Whether :meth:`store` refuses by itself a single recipient who has opted out."""

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        """Return the messages that have one of these idempotency keys, unless it is free again.

        Called for each batch.
        """
        raise NotImplementedError

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        """Return those of these recipients, each with its channel, that have opted out."""
        raise NotImplementedError

    def store(self, batch: Batch) -> None:
        """Store what is reserved; mark what keeps its reservation.

        An entry whose reservation was released meanwhile is refused with GivenUp.
        """
        raise NotImplementedError

    def enqueue(self, batch: Batch) -> None:
        """Enqueue what is committed."""


@dataclass(kw_only=True)
class OwnTransaction(Sink):
    """Stores in a transaction of its own, which is committed when :meth:`store` returns.

    A single message is an INSERT, more are stored together. What cannot be stored together is
    stored one by one.
    """

    reservations: Reserver
    settings: Settings
    clock: Clock
    messages: Messages
    suppressions: Suppressions
    enqueuer: Enqueuer
    refuses_suppressed = True

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        known = self.messages.with_keys(list(keyed))
        return occupied(keyed, known, self.messages.unsent)

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        return self.suppressions.among(recipients)

    def store(self, batch: Batch) -> None:
        """Store all or none of an atomic batch, else what can be stored.

        Look at the reservations again where that took long.
        """
        if not batch.booked:
            return
        if batch.atomic:
            self._store_all(batch)
        elif len(batch.booked) == 1 or any(entry.is_duplicate for entry in batch.booked):
            self._store_each(batch, perhaps_stored=False)
        else:
            batch.keep_reservations()
            done = self.messages.add_together([each.addition for each in batch.booked])
            if done:
                batch.stored = batch.booked
            else:
                self._store_each(batch, perhaps_stored=done is None)
        fault("submit.after_commit")
        settle_seconds = self.settings.settle.total_seconds()
        if batch.stored and self.clock.monotonic() - batch.started > settle_seconds:
            self._look_again(batch)

    def enqueue(self, batch: Batch) -> None:
        """Write the accepted messages into the journal, and enqueue them."""
        accepted = [each.result for each in batch.stored if isinstance(each.result, Message)]
        if accepted:
            self.enqueuer.accept(accepted)

    def _look_again(self, batch: Batch) -> None:
        """Let the submit that inserted a row look at its reservation; others look at the row.

        A row that was there before is that of a submit with the same idempotency key, which may
        have been slow as well, and have taken it back.
        """
        inserted: list[Entry] = []
        found: list[tuple[str, Entry]] = []
        for entry in batch.stored:
            key = entry.valid.idempotency_key
            if key is None or entry.result is entry.addition.message:
                inserted.append(entry)
            else:
                found.append((key, entry))
        self.reservations.look_again(inserted, keep=batch.atomic)
        for key, entry in found:
            try:
                entry.result = recalled(entry.valid, self.recall({key: entry})) or GivenUp()
            except IdempotencyConflict as error:
                entry.result = error
            except StoreUnavailable as error:
                entry.result = OutcomeUnknown(error.reason, entry.addition.message.id)

    def _store_each(self, batch: Batch, *, perhaps_stored: bool) -> None:
        batch.keep_reservations(perhaps_stored)
        for entry in batch.booked:
            try:
                entry.result = self._stored(entry, perhaps_stored=perhaps_stored)
            except (IdempotencyConflict, Suppressed) as error:
                entry.result = error
            except StoreUnavailable as error:
                if not error.refused:
                    raise
                entry.result = error
            else:
                if entry.result.id == entry.reservation.message_id:
                    batch.stored.append(entry)
                entry.is_duplicate &= entry.result is not entry.addition.message

    def _stored(self, entry: Entry, *, perhaps_stored: bool) -> Message:
        """Store one message and return it, or the one that a duplicate submit has stored.

        ``perhaps_stored``: it was tried before, and the outcome is unknown. Then it is again,
        whatever the database answers now, and OutcomeUnknown is raised. Its reservation stays:
        reconcile finds out whether the message needs it.
        """
        message = entry.addition.message
        entry.keeps_reservation = True
        try:
            stored = self.messages.add(entry.addition, perhaps_stored=perhaps_stored)
            if stored.id != message.id:
                recalled(entry.valid, self.recall({message.idempotency_key or "": entry}))
                entry.keeps_reservation = False
        except OutcomeUnknown:
            raise
        except (StoreUnavailable, IdempotencyConflict, Suppressed) as error:
            if isinstance(error, GivenUp):
                # A duplicate submit that shares the reservation is refused as well.
                self.reservations.release(entry)
            elif perhaps_stored and isinstance(error, StoreUnavailable):
                raise OutcomeUnknown(error.reason, message.id) from error
            entry.keeps_reservation = False
            raise
        # The row may be the one that was stored with the batch.
        return message if perhaps_stored and stored.id == message.id else stored

    def _store_all(self, batch: Batch) -> None:
        """Store all or none, and make sure which.

        A reservation of a duplicate submit is shared by the id of its message: the first one to
        store it has it, ``has`` finds what both stored, and ``withdraw`` leaves it to the other.
        """
        booked = batch.booked
        batch.keep_reservations()
        ids = [entry.reservation.message_id for entry in booked]
        perhaps_stored = False
        for _ in range(_TRIES):
            additions = [entry.addition for entry in booked]
            done = self.messages.add_together(additions, perhaps_stored=perhaps_stored)
            # After a broken line the server may still be storing, and what it holds may be why
            # the next try is refused.
            perhaps_stored |= done is None
            try:
                if done or self.messages.has(ids):
                    batch.stored = booked
                    for entry in booked if done else ():
                        entry.is_duplicate = False
                    return
            except StoreUnavailable as error:
                # The messages may be stored: reconcile finds out whether they need reservations.
                raise OutcomeUnknown(error.reason, ids[0]) from error
        if perhaps_stored:
            raise OutcomeUnknown("the connection broke while a batch was stored", ids[0])
        batch.keep_reservations(False)
        raise StoreUnavailable("the database did not take the batch; nothing was stored")


_Transaction = JoinedTransaction[Entry]


@dataclass(kw_only=True)
class CallersTransactions:
    """Transactions of callers: messages are stored if and when those commit.

    When the transaction has ended, the rows decide: reservations of stored messages stay, the
    others are released. Between the INSERT and that end no other statement runs: on SQLite the
    caller's transaction keeps all other connections from writing. Until ``transaction_grace`` and
    ``reconcile_grace`` have passed, reconcile does not release the reservations of an open
    transaction.
    """

    settings: Settings
    clock: Clock
    store: JoinedMessages
    reserver: Reserver
    enqueuer: Enqueuer

    def of(self, session: object) -> CallersTransaction:
        return CallersTransaction(
            reservations=self.reserver,
            grace=self.settings.transaction_grace,
            join=cache(partial(self._join, session)),
        )

    def _join(self, session: object) -> _Transaction:
        """Join the transaction of ``session``. Raises like :meth:`JoinedMessages.join`.

        What a savepoint took away is withdrawn, because it would block the next message.
        """
        transaction = self.store.join(session, self._ended)
        watch = transaction.watch
        if watch.undone and watch.joined:
            present = transaction.present([entry.addition.message.id for entry in watch.joined])
            gone = [entry for entry in watch.joined if entry.addition.message.id not in present]
            for entry in gone:
                watch.joined.remove(entry)
            if gone:
                self.reserver.withdraw([entry.reservation.booked for entry in gone])
            watch.undone = False
        return transaction

    def _ended(self, joined: Sequence[Entry], is_certain: bool) -> None:
        """Enqueue what the ended transaction has stored; release the reservations of the rest."""
        if not joined:
            return
        fault("joined.after_commit")
        try:
            found = self.store.stored([entry.addition.message.id for entry in joined])
        except StoreUnavailable as error:
            log.warning(
                "could not look up %d messages after their transaction; enqueue_due enqueues "
                "those that are stored: %s",
                len(joined), error,
            )  # fmt: skip
            return
        stored = [entry for entry in joined if entry.addition.message.id in found]
        self.enqueuer.accept([entry.addition.message for entry in stored])
        late = self.clock.monotonic() - self.settings.settle.total_seconds()
        slow = [entry for entry in stored if entry.reserved_at < late]
        self.reserver.look_again(slow, keep=True, wait=False)
        gone = [entry for entry in joined if entry.addition.message.id not in found]
        if is_certain and gone:
            self.reserver.withdraw([entry.reservation.booked for entry in gone])


@dataclass(kw_only=True)
class CallersTransaction(Sink):
    """Stores one draft in the transaction of a session. Never raises OutcomeUnknown.

    What fails is undone alone, so that the caller's transaction is as it was before.
    """

    join: Callable[[], _Transaction]
    refuses_suppressed = True

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        """Join the transaction, and look the keys up as seen from inside."""
        transaction = self.join()
        if not keyed:
            return {}
        found = [(key, transaction.with_key(key)) for key in keyed]
        known = {key: of_key for key, of_key in found if of_key is not None}
        return occupied(keyed, known, transaction.unsent)

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        """Look the recipients up, as seen from inside."""
        transaction = self.join()
        return {each for each in recipients if transaction.is_suppressed(*each)}

    def store(self, batch: Batch) -> None:
        for entry in batch.booked:
            transaction = self.join()
            transaction.watch.joined.append(entry)
            entry.reserved_at, entry.keeps_reservation = batch.started, True
            try:
                entry.result = self._stored(entry, transaction)
                entry.keeps_reservation = entry.result.id == entry.addition.message.id
            except (StoreUnavailable, IdempotencyConflict, Suppressed):
                entry.keeps_reservation = False
                raise
            finally:
                if not entry.keeps_reservation:
                    transaction.watch.joined.remove(entry)
            fault("joined.after_add")

    def _stored(self, entry: Entry, transaction: _Transaction) -> Message:
        message = entry.addition.message
        key = message.idempotency_key
        for _ in range(_TRIES):
            if transaction.add(entry.addition):
                return message
            known = None if key is None else recalled(entry.valid, self.recall({key: entry}))
            if known is not None:
                return known
            entry.addition = entry.addition._replace(supersedes=entry.supersedes)
        raise StoreUnavailable("other calls kept taking the id or the key", remedy="try again")


@dataclass(kw_only=True)
class DryRun(Sink):
    """Stores nothing, and reserves in copies of the windows: for plans.

    The drafts of later batches find the idempotency keys of earlier ones, which this process keeps.
    """

    reservations: Copies
    messages: Messages
    suppressions: Suppressions
    _keys: dict[str, tuple[UUID, str]] = field(default_factory=dict, init=False)
    """The message that has the reservation, and its fingerprint, by idempotency key."""

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        """Return what is stored under these keys, or what earlier batches would have stored."""
        stored = self.messages.with_keys(list(keyed))
        known = dict(occupied(keyed, stored, self.messages.unsent))
        for key in keyed.keys() & self._keys.keys() - known.keys():
            valid, (message_id, fingerprint) = keyed[key].valid, self._keys[key]
            at = valid.send_at  # a plan shows nothing of the message
            message = compose(valid, message_id, at, created_at=at, max_attempts=1)
            known[key] = message, fingerprint
        return known

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        return self.suppressions.among(recipients)

    def store(self, batch: Batch) -> None:
        batch.keep_reservations()
        for entry in batch.booked:
            key, fingerprint = entry.valid.idempotency_key, entry.valid.fingerprint
            if key is not None and fingerprint is not None:
                self._keys[key] = entry.reservation.message_id, fingerprint
