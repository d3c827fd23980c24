"""Move what stands at a wrong time since the rules of its zone have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

from dispatcher.errors import DispatcherError, Unavailable
from dispatcher.message import OnConflict
from dispatcher.store.schema import Event
from dispatcher.store.wishes import Wishes, WrongTime
from dispatcher.submission.changes import ChangeResult, Changes, NewTime
from dispatcher.submission.events import EventList

_AT_ONCE = 500


@dataclass(kw_only=True)
class ZoneRepair:
    wishes: Wishes
    changes: Changes
    event_list: EventList

    def check(self) -> Iterator[WrongTime]:
        messages = chain.from_iterable(self.wishes.wrong_messages())
        return chain(self.wishes.wrong_events(), messages)

    def repair(self, on_conflict: OnConflict) -> Iterator[WrongTime]:
        """Move events with their reminders, then messages; yield each with what came of it.

        Raises Unavailable.
        """
        yield from self._repaired([*self.wishes.wrong_events()], on_conflict)
        rows = sorted(chain.from_iterable(self.wishes.wrong_messages()), key=_turn)
        for start in range(0, len(rows), _AT_ONCE):
            yield from self._repaired(rows[start : start + _AT_ONCE], on_conflict)

    def _repaired(self, rows: Sequence[WrongTime], on_conflict: OnConflict) -> Iterator[WrongTime]:
        """Move messages that have a time of their own, and the events of the others."""
        own = [row.id for row in rows if row.id and "T" in row.wish]
        new_time = NewTime(as_wished=True, on_conflict=on_conflict)
        answers: dict[UUID | None, ChangeResult] = {}
        answers |= zip(own, self.changes.reschedule_many(own, new_time), strict=True)
        others = [row for row in rows if row.id not in answers]
        events = {name: self._moved(name, on_conflict) for name in {row.event for row in others}}
        moved = self.changes.messages.movables([row.id for row in others if row.id])
        for row in rows:
            result: Event | ChangeResult
            result = answers[row.id] if row.id in answers else events[row.event]
            if isinstance(result, Event) and row.id in moved:
                result = moved[row.id].message
            yield _told(row, result)

    def _moved(self, name: str | None, on_conflict: OnConflict) -> Event | DispatcherError:
        try:
            return self.event_list.move(name or "", None, None, on_conflict, "refuse")
        except DispatcherError as refused:
            return refused


def _turn(row: WrongTime) -> tuple[Any, ...]:
    """Sort what moves later from the last on, the rest from the first: so none is in the way."""
    moves_later = row.means is not None and row.means > row.at
    return not moves_later, -row.at.timestamp() if moves_later else row.at.timestamp()


def _told(row: WrongTime, result: Event | ChangeResult) -> WrongTime:
    if isinstance(result, Unavailable):
        raise result
    if isinstance(result, DispatcherError):
        return row._replace(now=row.at, refused=str(result))
    return row._replace(now=result.at if isinstance(result, Event) else result.send_at)
