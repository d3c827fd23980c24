"""Give messages other times: book the new time, change the row, release the time that lost.

One move is a batch of one. A caller asks for a ``NewTime``; checked, with the row it was read from,
it is a ``ValidMove``; booked, it has a ``Slot`` with a tail of its own; the values of the row are a
``NewSlot``. Both reservations stand until the row has decided: it has the tail of one of them.
Where a process dies in between, reconcile releases the other one (docs/decisions/0031-moves.md).
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from dispatcher.errors import (
    DispatcherError,
    MessageChanged,
    MessageNotFound,
    QuotaExceeded,
    ReservationsUnavailable,
    SlotRefused,
    StoreUnavailable,
)
from dispatcher.faults import fault
from dispatcher.message import Message, is_unchanged
from dispatcher.reservation import (
    BookingRequest,
    Reserved,
    Slot,
    Terms,
    Upkeep,
    Windows,
    longest_ms,
)
from dispatcher.scope import Scope
from dispatcher.settings import Settings
from dispatcher.store.messages import Messages, NewSlot
from dispatcher.store.schema import Movable
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.validation import ValidDraft, scopes_of
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

log = logging.getLogger(__name__)

MoveResult = Message | DispatcherError | None
"""A moved message, or why it was not moved; None where it was changed concurrently."""


class ValidMove(NamedTuple):
    """A message as it was read, and the draft of it with the wanted time, zone and expiry.

    With ``if_unchanged`` another change that comes between refuses the move.
    """

    found: Movable
    valid: ValidDraft
    if_unchanged: bool = False

    @property
    def keeps_its_time(self) -> bool:
        """Whether time and zone stay, so that only the expiry changes."""
        message, valid = self.found.message, self.valid
        return (valid.send_at, valid.zone) == (message.send_at, message.zone)

    @property
    def request(self) -> BookingRequest:
        return self.valid.request(self.found.message.id, tail=self.found.tail)


@dataclass(kw_only=True)
class Moves:
    """Moves scheduled messages. The row decides every race.

    Releases the reservations of cancelled messages, too: a move may meet one halfway.
    """

    settings: Settings
    clock: Clock
    windows: Windows
    upkeep: Upkeep
    messages: Messages
    enqueuer: Enqueuer

    def move_many(self, valid_moves: Sequence[ValidMove]) -> list[MoveResult]:
        """Return the moved messages, or why they were not moved, as one by one in this order.

        After StoreUnavailable a message has the old time or the new one, after another error the
        old one.
        """
        answers: list[MoveResult] = []
        at_once = len(valid_moves)
        while len(answers) < len(valid_moves):
            together = valid_moves[len(answers) : len(answers) + at_once]
            try:
                done = self._moved(together)
            except (ReservationsUnavailable, StoreUnavailable) as error:
                return answers + [error] * (len(valid_moves) - len(answers))
            answers += done
            # Messages in the way of each other come in a row: then few are judged in vain.
            at_once = 1 if len(done) < len(together) else 2 * at_once
        return answers

    def release(self, cancelled: Sequence[Movable]) -> None:
        """Release the reservations of cancelled messages."""
        requests = []
        for message, _, tail, _ in cancelled:
            terms = Terms(scopes_of(message, self.settings))
            if terms.scopes:  # a status message has none
                requests.append(BookingRequest(message.id, terms, 0, 0, tail=tail))
        try:
            self.windows.withdraw(requests)
        except ReservationsUnavailable as error:
            log.warning(
                "could not release the reservations of %d cancelled messages; reconcile will: %s",
                len(requests), error,
            )  # fmt: skip

    def _moved(self, valid_moves: Sequence[ValidMove]) -> list[MoveResult]:
        """Move messages together; return the answers to the first ones, at least to one.

        The list ends before a message whose answer may be another one once those before it have
        left their old times.
        """
        began = self.clock.monotonic()
        moving = [index for index, move in enumerate(valid_moves) if not move.keeps_its_time]
        found = self.windows.move_many([valid_moves[index].request for index in moving])
        judged = dict(zip(moving, found, strict=True))
        end = self._end_of_order(valid_moves, moving, judged)
        booked = {index: answer for index, answer in judged.items() if isinstance(answer, Slot)}
        self._drop([booked.pop(index).request for index in [*booked] if index >= end])
        fault("reschedule.after_hold")
        answers: list[MoveResult] = [None] * end
        slots: dict[int, NewSlot] = {}
        for index, move in enumerate(valid_moves[:end]):
            refused = judged.get(index)
            if isinstance(refused, SlotRefused):
                answers[index] = refused
            else:
                slots[index] = self._new_slot(move, booked.get(index))
        rows = self._changed(valid_moves, slots, answers)
        fault("reschedule.after_row")
        won = [index for index in booked
               if index in rows and rows[index].tail == booked[index].request.tail]  # fmt: skip
        released = [booked[index].request for index in booked if index not in won]
        is_slow = self.clock.monotonic() - began > self.settings.settle.total_seconds()
        moved = [(rows[index], valid_moves[index].valid.terms.scopes) for index in won]
        # The old reservations, which are pending, stay until the new ones are surely there.
        if not is_slow or self._restore(moved):
            released += [
                valid_moves[index].request
                for index in booked
                if index in rows and rows[index].tail != valid_moves[index].found.tail
            ]
        self._drop(released)
        fault("reschedule.after_release")
        for index, slot in slots.items():
            if answers[index] is None and index not in rows:
                answers[index] = MessageNotFound(slot.found.message.id)
            elif answers[index] is None and _is_as_wanted(rows[index].message, slot):
                answers[index] = rows[index].message
        return answers

    def _end_of_order(
        self,
        valid_moves: Sequence[ValidMove],
        moving: Sequence[int],
        judged: Mapping[int, Slot | SlotRefused],
    ) -> int:
        """Return before which message the list must end.

        The first that was refused or shifted near a time that an earlier one is about to leave. One
        that gets the time it asked for would get it then, too.
        """
        leaving: defaultdict[Scope, list[int]] = defaultdict(list)
        for index in moving:
            request, answer = valid_moves[index].request, judged[index]
            is_booked = isinstance(answer, Slot)
            until_ms = answer.at_ms if isinstance(answer, Slot) else to_ms(answer.next_slot)
            if not is_booked or until_ms != request.asked_ms:
                for scope in request.terms.scopes:
                    reach_ms = longest_ms(self.settings.quotas_of[scope.kind])
                    begins_ms, ends_ms = request.asked_ms - reach_ms, until_ms + reach_ms
                    if _has_between(leaving[scope], begins_ms, ends_ms):
                        return index
            if is_booked:
                for scope in request.terms.scopes:
                    insort(leaving[scope], to_ms(valid_moves[index].found.message.send_at))
        return len(valid_moves)

    def _changed(
        self,
        valid_moves: Sequence[ValidMove],
        slots: Mapping[int, NewSlot],
        answers: list[MoveResult],
    ) -> dict[int, Movable]:
        """Change rows; return those that are stored, as they now are.

        Rows that the database refuses together are tried one by one.
        """
        if not slots:
            return {}
        # Reconcile releases what the row does not have after the whole grace.
        within = self.settings.reconcile_grace / 2
        try:
            if any(valid_moves[index].if_unchanged for index in slots):
                [(index, slot)] = slots.items()  # it is asked of one message at a time
                return {index: self.messages.move_if_unchanged(slot, within=within)}
            rows = self.messages.move([*slots.values()], within=within)
        except (MessageChanged, MessageNotFound, StoreUnavailable) as error:
            # Unless the database refused, rows may have changed: reconcile reads them.
            if isinstance(error, StoreUnavailable) and not error.refused:
                raise
            if len(slots) == 1:
                [index] = slots
                answers[index] = error
                return {}
            found: dict[int, Movable] = {}
            for index, slot in slots.items():
                found |= self._changed(valid_moves, {index: slot}, answers)
            return found
        ids = {index: slot.found.message.id for index, slot in slots.items()}
        return {index: rows[each] for index, each in ids.items() if each in rows}

    def _new_slot(self, move: ValidMove, booked: Slot | None) -> NewSlot:
        valid = move.valid
        send_at = valid.send_at if booked is None else from_ms(booked.at_ms)
        return NewSlot(
            move.found,
            send_at=send_at,
            next_attempt_at=send_at,
            enqueue_at=self.enqueuer.enqueue_at(send_at),
            zone=valid.zone,
            expires_at=valid.expiry(send_at),
            expire_after=valid.expire_after,
            asked_at=valid.send_at if valid.send_at != send_at else None,
            tail=move.found.tail if booked is None else booked.request.tail,
        )

    def _drop(self, members: Sequence[BookingRequest]) -> None:
        if not members:
            return
        try:
            self.windows.withdraw(members)
        except ReservationsUnavailable as error:
            log.warning(
                "could not release %d reservations of moved messages; reconcile will: %s",
                len(members), error,
            )  # fmt: skip

    def _restore(self, moved: Sequence[tuple[Movable, Sequence[Scope]]]) -> bool:
        """Add reservations that a rebuild has missed, because it read the rows before they moved.

        The messages keep their times, also against a quota. Return whether all are there.
        """
        rows = [
            Reserved(row.message.id, tuple(scopes), row.message.send_at, row.tail)
            for row, scopes in moved
        ]
        try:
            restored = self.upkeep.restore_missing(rows)
        except ReservationsUnavailable as error:
            log.warning(
                "could not check the reservations of %d moved messages; reconcile restores those "
                "that are missing: %s", len(rows), error,
            )  # fmt: skip
            return False
        if restored:
            log.error(
                "restored %d reservations that were lost while their messages moved: a quota may "
                "be exceeded; run `dispatcher windows verify`", restored,
            )  # fmt: skip
        return True


def unchanged(messages: Messages, message_id: UUID, before: Message) -> Movable:
    """Return a message with its token. Raises MessageChanged unless it is as it was before."""
    found = messages.movable(message_id)
    if not is_unchanged(before, found.message):
        raise MessageChanged(message_id)
    return found


def is_in_its_own_way(message_id: UUID, error: object) -> bool:
    """Whether a move is refused because another move of the message holds a time there."""
    return isinstance(error, QuotaExceeded) and message_id in error.conflicting


def _has_between(ordered: Sequence[int], start: int, end: int) -> bool:
    first = bisect_right(ordered, start)
    return first < len(ordered) and ordered[first] < end


def _is_as_wanted(message: Message, slot: NewSlot) -> bool:
    return (slot.send_at, slot.zone, slot.expires_at, slot.expire_after) == (
        message.send_at, message.zone, message.expires_at, message.expire_after
    )  # fmt: skip
