"""Move what stands at a wrong time since the rules of its zone have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

from dispatcher.errors import DispatcherError, Unavailable
from dispatcher.message import OnConflict
from dispatcher.store.schema import Event
from dispatcher.store.wishes import Wishes, WrongTime
from dispatcher.submission.changes import ChangeResult, Changes, NewTime
from dispatcher.submission.events import EventList


@dataclass(kw_only=True)
class ZoneRepair:
    wishes: Wishes
    changes: Changes
    event_list: EventList

    def check(self) -> Iterator[WrongTime]:
        pages = chain(self.wishes.wrong_events(), self.wishes.wrong_messages())
        return chain.from_iterable(pages)

    def repair(self, on_conflict: OnConflict) -> Iterator[WrongTime]:
        """Move events with their reminders, then messages; yield each with what came of it.

        Of those that move later the last goes first, of the others the first: so none finds its
        place still taken by the next one. Raises Unavailable.
        """
        for page in self.wishes.wrong_events():
            for row in page:
                yield _told(row, self._moved(row.event or "", on_conflict))
        for later in (True, False):
            for page in self.wishes.wrong_messages(last_first=later):
                rows = [row for row in page if row.moves_later is later]
                yield from self._repaired(rows, on_conflict)

    def _repaired(self, rows: Sequence[WrongTime], on_conflict: OnConflict) -> Iterator[WrongTime]:
        """Move messages that have a time of their own, and the events of reminders."""
        own = [row.id for row in rows if row.id and "T" in row.wish]
        new_time = NewTime(as_wished=True, on_conflict=on_conflict)
        results: dict[UUID | None, Event | ChangeResult] = {}
        results |= zip(own, self.changes.reschedule_many(own, new_time), strict=True)
        reminders = {row.id: row.event for row in rows if row.id and row.id not in results}
        events = {name: self._moved(name or "", on_conflict) for name in {*reminders.values()}}
        moved = self.changes.messages.movables([*reminders])
        for row in rows:
            if row.id in reminders:
                answer = events[row.event]
                stands = row.id in moved and isinstance(answer, Event)
                results[row.id] = moved[row.id].message if stands else answer
            yield _told(row, results[row.id])

    def _moved(self, name: str, on_conflict: OnConflict) -> Event | DispatcherError:
        try:
            return self.event_list.move(name, None, None, on_conflict, "refuse")
        except DispatcherError as refused:
            return refused


def _told(row: WrongTime, result: Event | ChangeResult) -> WrongTime:
    if isinstance(result, Unavailable):
        raise result
    if isinstance(result, DispatcherError):
        return row._replace(now=row.at, refused=str(result))
    return row._replace(now=result.at if isinstance(result, Event) else result.send_at)
