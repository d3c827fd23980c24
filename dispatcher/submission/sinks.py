"""Where accepted drafts go: a transaction of our own, one of the caller's, or nowhere."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from uuid import UUID

from dispatcher.errors import IdempotencyConflict, OutcomeUnknown, StoreUnavailable, Suppressed
from dispatcher.faults import fault
from dispatcher.message import Message
from dispatcher.reservation.plan import Copies
from dispatcher.settings import Settings
from dispatcher.store.events import EventChanged, EventRows
from dispatcher.store.lists import Suppressions
from dispatcher.store.messages import GivenUp, Messages
from dispatcher.store.outbox import JoinedMessages, JoinedTransaction
from dispatcher.store.schema import UNSENT_STATUSES, Event
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.pipeline import Batch, Entry, Known, Sink, compose, recalled
from dispatcher.submission.reserver import Reserver

log = logging.getLogger(__name__)

_TRIES = 3


def _occupied(
    keyed: Mapping[str, Entry], store: Messages | JoinedTransaction[Entry]
) -> dict[str, Known]:
    """Return what is known under keys that are not free; note what the other entries supersede.

    A key is free once its message has ended and surely was not sent.
    """
    if not keyed:
        return {}
    known = store.with_keys([*keyed])
    ended = [message for message, _ in known.values() if message.status in UNSENT_STATUSES]
    free = store.unsent(ended) if ended else ()
    for key, (message, _) in known.items():
        keyed[key].supersedes = message.id if message.id in free else None
    return {key: known[key] for key in known if known[key][0].id not in free}


@dataclass(kw_only=True)
class OwnTransaction(Sink):
    """Stores in a transaction of its own, which is committed when :meth:`store` returns.

    A single message is an INSERT, more are stored together. What cannot be stored together is
    stored one by one.
    """

    reservations: Reserver
    messages: Messages
    event_rows: EventRows
    suppressions: Suppressions
    enqueuer: Enqueuer

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        return _occupied(keyed, self.messages)

    def events(self, names: Sequence[str]) -> Mapping[str, Event]:
        return self.event_rows.read(names)

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        return self.suppressions.among(recipients)

    def store(self, batch: Batch) -> None:
        booked = batch.booked
        if batch.atomic:
            self._store_all(booked)
            batch.stored = [entry for entry in booked if entry.owned is None]
        elif len(booked) == 1 or any(entry.slot.is_duplicate for entry in booked):
            batch.stored = self._store_each(booked, perhaps_stored=False)
        else:
            _disown(booked)
            done: bool | None = False
            with suppress(EventChanged):
                done = self.messages.add_together([entry.addition for entry in booked])
            batch.stored = booked if done else self._store_each(booked, perhaps_stored=done is None)
        for entry in batch.stored:
            entry.is_new = entry.result is entry.addition.message
        fault("submit.after_commit")
        if slow := self.reservations.slow(batch.stored):
            self._look_again(slow, keep=batch.atomic)

    def enqueue(self, batch: Batch) -> None:
        self.enqueuer.accept(
            [entry.result for entry in batch.stored if isinstance(entry.result, Message)]
        )

    def _look_again(self, entries: Sequence[Entry], *, keep: bool) -> None:
        """Let the submit that inserted a row look at its reservation; others look at the row.

        A row that was there before is that of a submit with the same idempotency key, which may
        have been slow as well, and have taken it back.
        """
        ours = [entry for entry in entries if entry.is_new or entry.valid.idempotency_key is None]
        self.reservations.look_again(ours, keep=keep)
        for entry in set(entries).difference(ours):
            keyed = {entry.addition.message.idempotency_key or "": entry}
            try:
                entry.result = recalled(entry.valid, self.recall(keyed)) or GivenUp()
            except IdempotencyConflict as error:
                entry.result = error
            except StoreUnavailable as error:
                entry.result = OutcomeUnknown(error.reason, entry.addition.message.id)

    def _store_each(self, entries: Sequence[Entry], *, perhaps_stored: bool) -> list[Entry]:
        """Store one by one; return those whose message is stored under its id."""
        for entry in entries:
            entry.owned = None if perhaps_stored else entry.slot
        for entry in entries:
            try:
                entry.result = self._stored(entry, perhaps_stored=perhaps_stored)
            except (IdempotencyConflict, Suppressed, StoreUnavailable) as error:
                if isinstance(error, StoreUnavailable) and not error.refused:
                    raise
                entry.result = error
        return [
            entry for entry in entries if entry.owned is None and isinstance(entry.result, Message)
        ]

    def _stored(self, entry: Entry, *, perhaps_stored: bool) -> Message:
        """Store one message and return it, or the one that a duplicate submit has stored.

        ``perhaps_stored``: it was tried before, and the outcome is unknown. Then it is again,
        whatever the database answers now, and OutcomeUnknown is raised. Its reservation stays:
        reconcile finds out whether the message needs it.
        """
        message, entry.owned = entry.addition.message, None
        try:
            stored = self.messages.add(entry.addition, perhaps_stored=perhaps_stored)
            if stored.id != message.id:
                entry.owned = entry.slot
                recalled(entry.valid, self.recall({message.idempotency_key or "": entry}))
        except OutcomeUnknown:
            raise
        except GivenUp:
            # A duplicate submit that shares the reservation is refused as well.
            entry.owned = entry.slot.for_everyone()
            raise
        except (StoreUnavailable, IdempotencyConflict, Suppressed) as error:
            if perhaps_stored and isinstance(error, StoreUnavailable):
                raise OutcomeUnknown(error.reason, message.id) from error
            entry.owned = entry.slot
            raise
        return stored

    def _store_all(self, entries: Sequence[Entry]) -> None:
        """Store all or none, and make sure which. All have EventChanged as their result, or none.

        A reservation of a duplicate submit is shared by the id of its message: the first one to
        store it has it, ``has`` finds what both stored, and ``withdraw`` leaves it to the other.
        """
        _disown(entries)
        ids = [entry.slot.message_id for entry in entries]
        perhaps_stored = False
        for _ in range(_TRIES):
            additions = [entry.addition for entry in entries]
            try:
                done = self.messages.add_together(additions, perhaps_stored=perhaps_stored)
            except EventChanged as changed:
                if not perhaps_stored:
                    for entry in entries:
                        entry.owned, entry.result = entry.slot, changed
                    return
                done = False
            # After a broken line the server may still be storing, and what it holds may be why
            # the next try is refused.
            perhaps_stored |= done is None
            try:
                if done or self.messages.has(ids):
                    return
            except StoreUnavailable as error:
                # The messages may be stored: reconcile finds out whether they need reservations.
                raise OutcomeUnknown(error.reason, ids[0]) from error
        if perhaps_stored:
            raise OutcomeUnknown("the connection broke while a batch was stored", ids[0])
        for entry in entries:
            entry.owned = entry.slot
        raise StoreUnavailable("the database did not take the batch; nothing was stored")


def _disown(entries: Iterable[Entry]) -> None:
    for entry in entries:
        entry.owned = None


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
    store: JoinedMessages
    reserver: Reserver
    enqueuer: Enqueuer

    def of(self, session: object) -> CallersTransaction:
        return CallersTransaction(
            reservations=self.reserver,
            grace=self.settings.transaction_grace,
            transactions=self,
            session=session,
        )

    def join(self, session: object) -> JoinedTransaction[Entry]:
        """Join the transaction of ``session``. Raises like :meth:`JoinedMessages.join`.

        What a savepoint took away is withdrawn, because it would block the next message.
        """
        transaction = self.store.join(session, self._ended)
        watch = transaction.watch
        if watch.undone and watch.joined:
            present = transaction.present([entry.slot.message_id for entry in watch.joined])
            gone = [entry for entry in watch.joined if entry.slot.message_id not in present]
            watch.joined[:] = [entry for entry in watch.joined if entry.slot.message_id in present]
            if gone:
                self.reserver.withdraw([entry.slot.booked for entry in gone])
            watch.undone = False
        return transaction

    def _ended(self, joined: Sequence[Entry], is_certain: bool) -> None:
        if not joined:
            return
        fault("joined.after_commit")
        try:
            present = self.store.stored([entry.slot.message_id for entry in joined])
        except StoreUnavailable as error:
            log.warning(
                "could not look up %d messages after their transaction; enqueue_due enqueues "
                "those that are stored: %s",
                len(joined), error,
            )  # fmt: skip
            return
        stored = [entry for entry in joined if entry.slot.message_id in present]
        self.enqueuer.accept([entry.addition.message for entry in stored])
        self.reserver.look_again(self.reserver.slow(stored), keep=True, wait=False)
        gone = [entry for entry in joined if entry.slot.message_id not in present]
        if is_certain and gone:
            self.reserver.withdraw([entry.slot.booked for entry in gone])


@dataclass(kw_only=True)
class CallersTransaction(Sink):
    """Stores one draft in the transaction of a session. Never raises OutcomeUnknown.

    What fails is undone alone, so that the caller's transaction is as it was before.
    """

    transactions: CallersTransactions
    session: object
    recalls_unkeyed = True  # recall() joins the transaction, before anything is reserved

    @cached_property
    def transaction(self) -> JoinedTransaction[Entry]:
        return self.transactions.join(self.session)

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        return _occupied(keyed, self.transaction)

    def events(self, names: Sequence[str]) -> Mapping[str, Event]:
        return self.transaction.events(names)

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        return {recipient for recipient in recipients if self.transaction.is_suppressed(*recipient)}

    def store(self, batch: Batch) -> None:
        joined = self.transaction.watch.joined
        for entry in batch.booked:
            joined.append(entry)
            entry.owned = None
            try:
                entry.result = self._stored(entry)
                if entry.result.id != entry.slot.message_id:
                    entry.owned = entry.slot
            except EventChanged as changed:
                entry.owned, entry.result = entry.slot, changed
            except (StoreUnavailable, IdempotencyConflict, Suppressed):
                entry.owned = entry.slot
                raise
            finally:
                if entry.owned is not None:
                    joined.remove(entry)
            fault("joined.after_add")

    def _stored(self, entry: Entry) -> Message:
        message = entry.addition.message
        keyed = {} if message.idempotency_key is None else {message.idempotency_key: entry}
        for _ in range(_TRIES):
            if self.transaction.add(entry.addition):
                return message
            known = recalled(entry.valid, self.recall(keyed))
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
    event_rows: EventRows
    suppressions: Suppressions
    refuses_suppressed = False
    _keys: dict[str, tuple[UUID, str]] = field(default_factory=dict, init=False)
    """The message that has the reservation, and its fingerprint, by idempotency key."""

    def recall(self, keyed: Mapping[str, Entry]) -> Mapping[str, Known]:
        known = _occupied(keyed, self.messages)
        for key in keyed.keys() & self._keys.keys() - known.keys():
            valid, (message_id, fingerprint) = keyed[key].valid, self._keys[key]
            at = valid.send_at  # a plan shows nothing of the message
            message = compose(valid, message_id, at, created_at=at, max_attempts=1)
            known[key] = message, fingerprint
        return known

    def events(self, names: Sequence[str]) -> Mapping[str, Event]:
        return self.event_rows.read(names)

    def suppressed(self, recipients: Iterable[tuple[str, str]]) -> Container[tuple[str, str]]:
        return self.suppressions.among(recipients)

    def store(self, batch: Batch) -> None:
        for entry in batch.booked:
            key, fingerprint = entry.valid.idempotency_key, entry.valid.fingerprint
            if key is not None and fingerprint is not None:
                self._keys[key] = entry.slot.message_id, fingerprint
            entry.is_new = not entry.slot.is_duplicate  # else another submit is about to store it
