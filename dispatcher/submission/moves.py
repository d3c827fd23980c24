"""Give messages other times: book the new time, change the row, release the time that lost.

Both reservations of a message stand until its row has decided: it has the tail of one of them.
Where a process dies in between, reconcile releases the other one (docs/decisions/0031-moves.md).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.errors import (
    DispatcherError,
    MessageNotFound,
    ReservationsUnavailable,
    SlotRefused,
    StoreUnavailable,
)
from dispatcher.faults import fault
from dispatcher.message import Message
from dispatcher.reservation.booking import BookingRequest, Slot
from dispatcher.reservation.encoding import longest_ms
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.upkeep import Reserved
from dispatcher.reservation.windows import Windows
from dispatcher.scope import Scope
from dispatcher.settings import Settings
from dispatcher.store.messages import Messages, NewSlot, new_token
from dispatcher.store.schema import Movable
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.reserver import Reserver
from dispatcher.submission.validation import ValidDraft
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import from_ms, to_ms

_NEAR = 32
"""So many messages that leave before a time, and after it, count as gone for a move to it."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Move:
    """A move of one message: as it was ``before``, and its draft with the wanted time and expiry.

    ``answer`` is its second reservation, or the refusal; None where it keeps its time. ``new_slot``
    are the values for its row, and ``row`` is what that has then. ``result`` is the moved message,
    or why it was not moved; None where it was changed concurrently.
    """

    before: Movable
    valid: ValidDraft
    answer: Slot | SlotRefused | None = None
    new_slot: NewSlot = field(init=False)
    row: Movable | None = None
    result: Message | DispatcherError | None = None

    @property
    def keeps_its_time(self) -> bool:
        """Whether time and zone stay, so that only the expiry changes."""
        message, valid = self.before.message, self.valid
        return (valid.send_at, valid.zone) == (message.send_at, message.zone)

    @property
    def request(self) -> BookingRequest:
        """Its present reservation, and the wanted time."""
        return self.valid.request(self.before.message.id, tail=self.before.tail)

    def has_won(self) -> bool:
        """Return whether the row has the tail of the move or, where that has none, its token."""
        if self.row is None:
            return False
        if isinstance(self.answer, Slot):
            return self.row.tail == self.answer.request.tail
        return self.row.token == self.new_slot.token


@dataclass(kw_only=True)
class Moves:
    """Moves scheduled messages. The row decides every race."""

    settings: Settings
    clock: Clock
    rules: RuleBook
    windows: Windows
    messages: Messages
    reserver: Reserver
    enqueuer: Enqueuer

    def move_many(self, moves: Sequence[Move]) -> None:
        """Give each move its result, as one by one in this order."""
        done, at_once = 0, len(moves)
        while done < len(moves):
            together = moves[done : done + at_once]
            try:
                count = self._move(together)
            except (ReservationsUnavailable, StoreUnavailable) as error:
                for move in moves[done:]:
                    move.result = error
                return
            done += count
            # Messages in the way of each other come in a row: then few are judged in vain.
            at_once = 1 if count < len(together) else 2 * at_once

    def _move(self, moves: Sequence[Move]) -> int:
        """Move messages together; return how many have a result, the first ones, at least one.

        It ends before a message whose answer may be another one once those before it have left
        their old times.
        """
        began = self.clock.monotonic()
        moving = [move for move in moves if not move.keeps_its_time]
        answers = self.windows.move_many([move.request for move in moving])
        for move, answer in zip(moving, answers, strict=True):
            move.answer = answer
        end = self._end_of_order(moves)
        self._release([move.answer for move in moves[end:] if isinstance(move.answer, Slot)])
        fault("reschedule.after_booking")
        changing = []
        for move in moves[:end]:
            if isinstance(move.answer, SlotRefused):
                move.result = move.answer
            else:
                changing.append(move)
        self._change(changing)
        fault("reschedule.after_row")
        self.settle(changing, began)
        return end

    def book_together(self, moves: Sequence[Move]) -> list[NewSlot]:
        """Book new times of messages; return the values for their rows. Raises the first refusal.

        Each is judged as if the others had left their old times. :meth:`settle` releases what loses
        once the rows have decided.
        """
        answers = self.windows.move_many(self._together(moves))
        for move, answer in zip(moves, answers, strict=True):
            move.answer = answer
        for answer in answers:
            if not isinstance(answer, Slot):
                raise answer
        for move in moves:
            move.new_slot = self._new_slot(move)
        fault("event.after_booking")
        return [move.new_slot for move in moves]

    def _together(self, moves: Sequence[Move]) -> list[BookingRequest]:
        """Return the requests of messages that move together, each with those that leave near it.

        Those of a common scope whose old times are the nearest to its new one, because a script
        looks for each in every window.
        """
        requests = [move.request for move in moves]
        present: defaultdict[Scope, list[tuple[int, bytes]]] = defaultdict(list)
        for move, request in zip(moves, requests, strict=True):
            for scope in request.terms.scopes:
                present[scope].append((to_ms(move.before.message.send_at), request.member))
        for places in present.values():
            places.sort()
        together = []
        for request in requests:
            leaving = set[bytes]()
            for scope in request.terms.scopes:
                at = bisect_left(present[scope], (request.asked_ms, b""))
                near = present[scope][max(0, at - _NEAR) : at + _NEAR]
                leaving.update(member for _, member in near)
            together.append(request._replace(leaving=tuple(leaving - {request.member})))
        return together

    def settle(self, changing: Sequence[Move], began: float) -> None:
        """Release of both reservations the one that lost; give those that won their results."""
        won = [move for move in changing if move.has_won()]
        unneeded = [move.answer for move in changing
                    if isinstance(move.answer, Slot) and not move.has_won()]  # fmt: skip
        is_slow = self.clock.monotonic() - began > self.settings.settle.total_seconds()
        # The old reservations, which are pending, stay until the new ones are surely there.
        left: list[BookingRequest] = []
        if not is_slow or self._restore([move for move in won if move.answer is not None]):
            left = [move.request for move in changing
                    if move.row is not None and move.row.tail != move.before.tail]  # fmt: skip
        self._release(unneeded, left)
        fault("reschedule.after_release")
        for move in won:
            move.result = move.row and move.row.message

    def _end_of_order(self, moves: Sequence[Move]) -> int:
        """Return before which move the list must end.

        The first that was refused or shifted near a time that an earlier one is about to leave. One
        that gets the time it asked for would get it then, too.
        """
        rules = self.rules.latest
        leaving: defaultdict[Scope, list[int]] = defaultdict(list)
        for index, move in enumerate(moves):
            if move.answer is None:
                continue
            request, answer = move.request, move.answer
            is_booked = isinstance(answer, Slot)
            until_ms = answer.at_ms if isinstance(answer, Slot) else to_ms(answer.next_slot)
            if not is_booked or until_ms != request.asked_ms:
                for scope in request.terms.scopes:
                    reach_ms = longest_ms(rules.quotas(scope.kind, scope.name))
                    before = bisect_left(leaving[scope], until_ms + reach_ms)
                    if bisect_right(leaving[scope], request.asked_ms - reach_ms) < before:
                        return index
            if is_booked:
                for scope in request.terms.scopes:
                    insort(leaving[scope], to_ms(move.before.message.send_at))
        return len(moves)

    def _change(self, moves: Sequence[Move]) -> None:
        """Change rows, and read them. Those that the database refuses together are tried singly."""
        if not moves:
            return
        for move in moves:
            move.new_slot = self._new_slot(move)
        try:
            rows = self.messages.move([move.new_slot for move in moves])
        except StoreUnavailable as error:
            if not error.refused:
                raise  # rows may have changed: reconcile reads them
            if len(moves) == 1:
                moves[0].result = error
            else:
                for move in moves:
                    self._change([move])
            return
        for move in moves:
            message_id = move.before.message.id
            move.row = rows.get(message_id)
            if move.row is None:
                move.result = MessageNotFound(message_id)

    def _new_slot(self, move: Move) -> NewSlot:
        valid, answer, before = move.valid, move.answer, move.before.message
        send_at, tail = valid.send_at, move.before.tail
        if isinstance(answer, Slot):
            send_at, tail = from_ms(answer.at_ms), answer.request.tail
        return NewSlot(
            move.before,
            # Reconcile releases what the row does not have after the whole grace.
            until=move.before.read_at + self.settings.reconcile_grace / 2,
            send_at=send_at,
            next_attempt_at=send_at,
            enqueue_at=self.enqueuer.enqueue_at(send_at),
            zone=valid.zone,
            expires_at=valid.expiry(send_at),
            expire_after=valid.expire_after,
            asked_at=valid.send_at if valid.send_at != send_at else None,
            tail=tail,
            wish=before.wish if move.keeps_its_time and valid.wish is None else valid.wish,
            token=new_token(),
        )

    def _release(self, slots: Sequence[Slot], left: Sequence[BookingRequest] = ()) -> None:
        if slots or left:
            self.reserver.withdraw([*(slot.request for slot in slots), *left])

    def _restore(self, moves: Sequence[Move]) -> bool:
        """Add reservations that a rebuild has missed, because it read the rows before they moved.

        The messages keep their times, also against a quota. Return whether all are there.
        """
        restored = self.reserver.restore(
            Reserved(row.message.id, move.valid.terms.scopes, row.message.send_at, row.tail)
            for move in moves
            if (row := move.row) is not None
        )
        if restored:
            log.error(
                "restored %d reservations that were lost while their messages moved: a quota may "
                "be exceeded; run `dispatcher windows verify`", restored,
            )  # fmt: skip
        return restored is not None
