"""Set, move and cancel events, together with the messages that remind of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from secrets import token_hex
from typing import Literal, get_args
from uuid import UUID

from dispatcher.errors import QuotaExceeded, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.message import MAX_EVENT, Message, OnConflict, Status, check_text
from dispatcher.reservation.booking import BookingRequest, Terms
from dispatcher.settings import Settings
from dispatcher.store.events import EventRows, meant_at
from dispatcher.store.messages import NewSlot
from dispatcher.store.schema import Event, Movable
from dispatcher.submission.changes import Changes, NewTime
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.moves import Move, Moves
from dispatcher.submission.reserver import Reserver
from dispatcher.submission.validation import (
    check_choice,
    event_name,
    is_set,
    new_event,
    no_event,
    scopes_of,
    was_cancelled,
)
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times import send_time
from dispatcher.times.clock import Clock
from dispatcher.times.offset import Offset

Past = Literal["refuse", "cancel", "now"]
_TRIES = 10
_BETWEEN_TRIES_SECONDS = 0.01


@dataclass(kw_only=True)
class EventList:
    """Every event, and the changes that its messages follow. The row of the event decides."""

    settings: Settings
    clock: Clock
    event_rows: EventRows
    changes: Changes
    moves: Moves
    reserver: Reserver
    enqueuer: Enqueuer
    journal: Journal

    def get(self, name: str) -> Event:
        name = check_text("event", name, longest=MAX_EVENT)
        event = self.event_rows.read([name]).get(name)
        if event is None:
            raise no_event("one that was set")
        return event

    def set(self, name: str, at: datetime | str, zone: str | None) -> Event:
        name = event_name(name)
        wanted = new_event(name, at, zone)
        self.event_rows.add(wanted)
        event = self._open(name)
        if (event.at, event.zone) != (wanted.at, wanted.zone):
            raise is_set(event, "at")
        return event

    def move(
        self,
        name: str,
        at: datetime | str | None,
        zone: str | None,
        on_conflict: OnConflict,
        past: Past,
    ) -> Event:
        """Move an event with its scheduled messages, all or none: one transaction changes them.

        Without ``at`` it goes to where its local time is by the present rules of its zone.

        A process that dies leaves reservations of the old times or of the new ones, which reconcile
        compares with the rows.
        """
        check_choice("past", past, get_args(Past))
        for number in range(1, _TRIES + 1):
            before = self._open(name)
            if at is None:
                after = before._replace(at=meant_at(before), token=token_hex(6))
            else:
                after = new_event(before.name, at, zone or before.zone)
            read = self.event_rows.reminders(before.name)
            try:
                late, moves = self._moves(read, after, on_conflict, past)
                within = self.settings.reconcile_grace / 2
                change = partial(self.event_rows.move, before, after, read, within=within)
                cancelled: Mapping[UUID, Movable] = {}

                def store(slots: Sequence[NewSlot]) -> Mapping[UUID, Movable] | None:
                    nonlocal cancelled
                    rows = change(slots, late)  # noqa: B023 - it is called in this turn
                    cancelled = {} if rows is None else {id_: rows[id_] for id_ in late}  # noqa: B023
                    return rows

                is_moved = self.moves.move_together(moves, store)
            except QuotaExceeded as refused:
                # Another move of the event may hold a time there.
                own = {row.message.id for row in read}
                if own.isdisjoint(refused.conflicting) or number == _TRIES:
                    raise
                is_moved = False
            if is_moved:
                self._tell(moves, cancelled)
                return after
            self.clock.sleep(number * _BETWEEN_TRIES_SECONDS)
        raise StoreUnavailable("other calls kept changing the event", remedy="try again")

    def cancel(self, name: str) -> Event:
        while (event := self.get(name)).cancelled_at is None:
            rows = self.event_rows.cancel(event, token_hex(6))
            fault("event.after_cancel")
            self._tell((), rows or {})
        return event

    def _open(self, name: str) -> Event:
        event = self.get(name)
        if event.cancelled_at is not None:
            raise was_cancelled()
        return event

    def _moves(
        self, read: Sequence[Movable], event: Event, on_conflict: OnConflict, past: Past
    ) -> tuple[list[UUID], list[Move]]:
        """Return which messages are too late for the event, and the moves of the others."""
        zone, now = send_time.check_zone(event.zone or self.settings.zone), self.clock.now()
        late, moves = [], []
        for row in read:
            offset = _offset_of(row.message)
            if offset is None:
                continue
            send_at = offset.from_event(event.at, zone)
            if send_at < now and past == "cancel":
                late.append(row.message.id)
                continue
            if send_at < now and past == "now":
                new_time = NewTime(send_in=timedelta(0), on_conflict=on_conflict)
            else:
                new_time = NewTime(send_at=send_at, on_conflict=on_conflict)
            move = self.changes.valid_move(row.message.id, row, new_time, None)
            move.valid = move.valid._replace(wish=row.message.wish)
            moves.append(move)
        return late, moves

    def _tell(self, moves: Sequence[Move], cancelled: Mapping[UUID, Movable]) -> None:
        moved = [move.result for move in moves if isinstance(move.result, Message)]
        for message in moved:
            self.journal.tell(Transition.RESCHEDULED, message, send_at=message.send_at)
        self.enqueuer.enqueue(*moved)
        unneeded = []
        for message, _, tail, _ in cancelled.values():
            if message.status is Status.CANCELLED:
                self.journal.tell(Transition.CANCELLED, message)
                terms = Terms(scopes_of(message, self.settings))
                unneeded.append(BookingRequest(message.id, terms, 0, 0, tail=tail))
        if unneeded:
            self.reserver.withdraw(unneeded)


def _offset_of(message: Message) -> Offset | None:
    """Return how far from its event a message stands; None for one with a time of its own."""
    wish = message.wish
    return None if wish is None or "T" in wish else Offset.parse(wish)
