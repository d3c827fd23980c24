"""Reserve in the windows, release, and check reservations again after a slow commit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    OutcomeUnknown,
    ReservationsUnavailable,
    SlotRefused,
    StoreUnavailable,
)
from dispatcher.reservation.booking import Answer, BookingRequest, Slot
from dispatcher.reservation.refusals import RefusalLog
from dispatcher.reservation.shards import CLOSED
from dispatcher.reservation.upkeep import Reserved, Upkeep
from dispatcher.reservation.windows import Windows
from dispatcher.settings import Settings
from dispatcher.store.messages import Messages
from dispatcher.store.outbox import beside_the_loop
from dispatcher.store.void_ids import VoidIds
from dispatcher.submission.pipeline import Entry
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

LOOKING_SECONDS = 5.0
"""For how long a second look at a reservation waits for a Redis that does not answer."""
_BETWEEN_LOOKS_SECONDS = 0.5


@dataclass(kw_only=True)
class Reserver:
    clock: Clock
    windows: Windows
    upkeep: Upkeep
    messages: Messages
    settings: Settings
    void_ids: VoidIds
    refusals: RefusalLog | None = None

    def reserve(self, requests: Sequence[BookingRequest], *, grace: timedelta) -> list[Answer]:
        """Return the answer to each request; see :meth:`Windows.book`.

        What an exception interrupts is withdrawn: only the reply may have been lost.
        """
        book = partial(self.windows.book, requests, grace=grace)
        try:
            return beside_the_loop(book, to_its_end=True)
        except BaseException as error:
            self.withdraw(requests)
            if isinstance(error, ReservationsUnavailable) and error.reason == CLOSED:
                # Nobody completes them where the schema is missing: then the store says so.
                beside_the_loop(partial(self.messages.find_many, [requests[0].message_id]))
            raise

    def withdraw(self, requests: Sequence[BookingRequest]) -> None:
        """Release reservations that no message needs, now or by reconcile.

        A reservation on which a duplicate submit relies stays.
        """
        try:
            beside_the_loop(partial(self.windows.withdraw, requests))
        except ReservationsUnavailable as error:
            log.warning(
                "could not release %d reservations that no message needs; reconcile does: %s",
                len(requests), error,
            )  # fmt: skip

    def restore(self, rows: Iterable[Reserved]) -> int | None:
        """Add what is missing of these reservations, also against a quota; return how many it was.

        None where Redis does not answer: then reconcile restores them.
        """
        try:
            return self.upkeep.restore_missing([*rows])
        except ReservationsUnavailable as error:
            log.warning("could not check reservations; reconcile restores missing ones: %s", error)
            return None

    def note(self, refused: Sequence[tuple[BookingRequest, SlotRefused]]) -> None:
        if self.refusals is not None:
            beside_the_loop(partial(self.refusals.note, refused))

    def slow(self, stored: Sequence[Entry]) -> list[Entry]:
        late = self.clock.monotonic() - self.settings.settle.total_seconds()
        return [entry for entry in stored if entry.booked_at < late]

    def look_again(self, entries: Sequence[Entry], *, keep: bool, wait: bool = True) -> None:
        """Make sure that messages still have their reservations, because storing took long.

        Reconcile may have released them meanwhile, or a rebuild may have read the store before the
        messages were in it. Where Redis does not answer, it is asked again for a while if ``wait``.

        A message whose time another one has booked (SlotRefused) is taken back, its entry refused;
        so is one for which Redis does not answer (ReservationsUnavailable), unless it has an
        idempotency key: a duplicate submit may have returned it already. A message that is being
        sent stays, and with ``keep``, when they were accepted for good, all stay. The reservations
        of those that stay are restored. The result of an entry is OutcomeUnknown where the
        database does not answer whether it was taken back.
        """
        moved = self._moved([entry.addition.message.id for entry in entries])
        entries = [entry for entry in entries if entry.addition.message.id not in moved]
        kept = []
        for entry, error in zip(entries, self._lost(entries, wait=wait), strict=True):
            message = entry.addition.message
            is_silent = isinstance(error, ReservationsUnavailable)
            if error is None:
                continue
            if (
                keep
                or isinstance(error, IdempotencyConflict)
                or (is_silent and message.idempotency_key is not None)
            ):
                log.log(
                    logging.ERROR if isinstance(error, SlotRefused) else logging.WARNING,
                    "reservation lost for message %s: it keeps its time, and a quota may be "
                    "exceeded; reconcile restores the reservation: %s",
                    message.id, type(error).__name__,
                )  # fmt: skip
                kept.append(Reserved(message.id, entry.valid.terms.scopes, message.send_at))
                continue
            try:
                settled = self.void_ids.take_back(message)
            except StoreUnavailable as unknown:
                # The row may be void, or the message unreserved: do not say that it is accepted.
                entry.result = OutcomeUnknown(unknown.reason, message.id)
                continue
            if settled.void:
                entry.result, entry.owned = error, entry.slot.for_everyone()
            scopes = entry.valid.terms.scopes
            kept += [Reserved(id_, scopes, *time) for id_, time in settled.holding.items()]
        if kept:
            self.restore(kept)

    def _moved(self, message_ids: Sequence[UUID]) -> set[UUID]:
        try:
            rows = self.messages.movables(message_ids) if message_ids else {}
        except StoreUnavailable:
            return set()  # whoever takes one back finds that it was moved
        return {message_id for message_id, row in rows.items() if row.tail}

    def _lost(self, entries: Sequence[Entry], *, wait: bool) -> Sequence[DispatcherError | None]:
        """Reserve the same times once more; return of each why that is not possible."""
        requests = [entry.slot.booked for entry in entries]
        until = self.clock.monotonic() + (LOOKING_SECONDS if wait else 0)
        while True:
            answers: Sequence[Slot | DispatcherError]
            try:
                answers = self.windows.book(requests, is_stored=True) if requests else []
            except ReservationsUnavailable as error:
                answers = [error] * len(requests)
            is_silent = any(isinstance(answer, ReservationsUnavailable) for answer in answers)
            if not is_silent or self.clock.monotonic() >= until:
                return [
                    answer if isinstance(answer, DispatcherError) else None for answer in answers
                ]
            self.clock.sleep(_BETWEEN_LOOKS_SECONDS)
