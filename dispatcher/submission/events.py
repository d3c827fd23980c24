"""Set, move and cancel events, together with the messages that remind of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import inf
from secrets import token_hex
from typing import Literal, get_args
from uuid import UUID

from dispatcher.errors import DispatcherError, InvalidSendTime, QuotaExceeded, StoreUnavailable
from dispatcher.faults import fault
from dispatcher.message import MAX_EVENT, Message, OnConflict, Status, check_text
from dispatcher.reservation.booking import Slot
from dispatcher.settings import Settings
from dispatcher.store.events import LATE, EventChange, EventRows, meant_at
from dispatcher.store.schema import Event, Movable
from dispatcher.submission.changes import Cancellation, Changes, NewTime
from dispatcher.submission.enqueuer import Enqueuer
from dispatcher.submission.moves import Move, Moves
from dispatcher.submission.validation import (
    check_choice,
    event_name,
    known_event,
    new_event,
    open_event,
    set_otherwise,
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
    """Every event, and the changes that its messages follow."""

    settings: Settings
    clock: Clock
    event_rows: EventRows
    changes: Changes
    cancellation: Cancellation
    moves: Moves
    enqueuer: Enqueuer
    journal: Journal

    def get(self, name: str) -> Event:
        name = check_text("event", name, longest=MAX_EVENT)
        return known_event(self.event_rows.read([name]).get(name))

    def set(self, name: str, at: datetime | str, zone: str | None) -> Event:
        event = new_event(event_name(name), at, zone)
        self.event_rows.add(event)
        present = open_event(self.get(event.name))
        if (present.at, present.zone) != (event.at, event.zone):
            raise set_otherwise(present, "at")
        return present

    def move(
        self,
        name: str,
        at: datetime | str | None,
        zone: str | None,
        on_conflict: OnConflict,
        past: Past,
    ) -> Event:
        """Move an event with its messages, all or none: one transaction changes them.

        Without ``at`` it goes to where its local time is by the present rules of its zone.

        A process that dies leaves reservations of the old times or of the new ones, which reconcile
        compares with the rows.
        """
        check_choice("past", past, get_args(Past))
        name = check_text("event", name, longest=MAX_EVENT)
        asked = NewTime(send_at=at, zone=zone, on_conflict=on_conflict)
        for number in range(1, _TRIES + 1):
            moves, began = list[Move](), self.clock.monotonic()
            try:
                event, ended = self.event_rows.change(
                    name, partial(self._decide_move, asked, past, moves)
                )
                break
            except DispatcherError as error:
                if not isinstance(error, StoreUnavailable) or error.refused:
                    self._settle(moves, began)  # else rows may still change: reconcile reads them
                own = {move.before.message.id for move in moves}
                # A move before may not have released the times that it left.
                is_in_its_own_way = isinstance(error, QuotaExceeded) and own & {*error.conflicting}
                if not is_in_its_own_way or number == _TRIES:
                    raise
            self.clock.sleep(number * _BETWEEN_TRIES_SECONDS)
        fault("event.after_rows")
        self._settle(moves, began)
        moved = [move.result for move in moves if isinstance(move.result, Message)]
        for message in moved:
            self.journal.tell(Transition.RESCHEDULED, message, send_at=message.send_at)
        self.enqueuer.enqueue(*moved)
        self._tell_cancelled([*ended])
        return event

    def cancel(self, name: str) -> Event:
        name = check_text("event", name, longest=MAX_EVENT)
        event, ended = self.event_rows.change(name, self._decide_cancel)
        fault("event.after_cancel")
        self._tell_cancelled([*ended])
        return event

    def _decide_move(
        self,
        asked: NewTime,
        past: Past,
        moves: list[Move],
        event: Event | None,
        rows: Sequence[Movable],
    ) -> EventChange:
        """Book new times for these messages; add their moves to ``moves``.

        ``asked`` is the time for the event.
        """
        if moves:  # of a run before: that has ended, as this one has its locks
            self._settle(moves, began=-inf)
        event = open_event(event)
        if asked.send_at is None:
            event = event._replace(at=meant_at(event), token=token_hex(6))
        else:
            event = new_event(event.name, asked.send_at, asked.zone or event.zone)
        zone, now = send_time.check_zone(event.zone or self.settings.zone), self.clock.now()
        late, moving = [], []
        for row in rows:
            message = row.message
            if message.wish is None or "T" in message.wish:  # it has a time of its own
                continue
            send_at = Offset.parse(message.wish).from_event(event.at, zone)
            new_time = NewTime(send_at=send_at, on_conflict=asked.on_conflict)
            if send_at < now:
                if past == "cancel":
                    late.append(message.id)
                    continue
                if past == "refuse":
                    due = f"a message {message.wish} from it would be due at {send_at.isoformat()}"
                    accepted = "a later time, or past as cancel or now"
                    raise InvalidSendTime("at", f"{due}, which is past", accepted)
                new_time = NewTime(send_in=timedelta(0), on_conflict=asked.on_conflict)
            move = self.changes.valid_move(row, new_time)
            move.valid = move.valid._replace(wish=message.wish)
            if not move.keeps_its_time:
                moving.append(move)
        moves += moving
        return EventChange(event, self.moves.book_together(moving), late, LATE)

    def _decide_cancel(self, event: Event | None, rows: Sequence[Movable]) -> EventChange:
        event = known_event(event)
        if event.cancelled_at is not None:
            return EventChange(event)
        ids = [row.message.id for row in rows]
        now = send_time.from_ms(send_time.to_ms(self.clock.now()))
        return EventChange(event._replace(token=token_hex(6), cancelled_at=now), cancelled=ids)

    def _settle(self, moves: Sequence[Move], began: float) -> None:
        """Release the places that no row has; a run whose reply was lost may have changed rows."""
        booked = [move for move in moves if isinstance(move.answer, Slot)]
        rows = self.changes.messages.movables([move.before.message.id for move in booked])
        for move in booked:
            move.row = rows.get(move.before.message.id)
        self.moves.settle(booked, began)

    def _tell_cancelled(self, ids: Sequence[UUID]) -> None:
        rows = self.changes.messages.movables(ids).values()
        for row in rows:
            if row.message.status is Status.CANCELLED:
                self.journal.tell(Transition.CANCELLED, row.message)
        self.cancellation.release(rows)
