"""Series as rows of the table of events: a series is an event that repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from dispatcher.store.database import Database
from dispatcher.store.engines.base import pages
from dispatcher.store.engines.types import one_of


class SeriesRow(NamedTuple):
    """``token`` changes with the definition: no message is stored under an earlier one.

    All occurrences before ``booked_until`` are decided; ``due_at`` is when more are to be booked.

    Beside the fields of the series, ``definition`` has what its last change asks of later passes:
    ``booked_from`` and, of a change by the dates of each zone, ``wall_from`` are the nominal times
    from which on this token books; ``replaces`` stands there until the messages under earlier
    tokens are cancelled. A row that is ``removed`` has no fields of the series.
    """

    name: str
    token: str
    definition: Mapping[str, Any]
    booked_until: datetime
    due_at: datetime | None

    @property
    def is_removed(self) -> bool:
        """Whether it only waits until its messages are cancelled."""
        return "removed" in self.definition


class SeriesRows:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.tables.events
        row = self._table.c
        self._columns = [row[name] for name in SeriesRow._fields]
        this = (row.name == bindparam("this"), row.token == bindparam("was"))
        self._unless_changed = update(self._table).where(*this)

    def add(self, row: SeriesRow) -> None:
        """Add a row unless there is one of its name."""
        self._database.add_if_absent(self._table, **row._asdict())

    def get(self, name: str) -> SeriesRow | None:
        rows = self._database.read(select(*self._columns).where(self._table.c.name == name))
        return SeriesRow._make(rows[0]) if rows and rows[0].definition is not None else None

    def all(self, *, size: int, after: str = "") -> Iterator[SeriesRow]:
        row = self._table.c
        query = select(*self._columns).where(row.definition.is_not(None), row.name > after)
        for page in pages(self._database.read, query, (row.name,), size):
            yield from map(SeriesRow._make, page)

    def change(self, token: str, changed: SeriesRow) -> bool:
        """Write a row unless another call has changed it since it had this token.

        One that is removed may be gone by the time it is read again: a pass has ended it.
        """
        self._write([(token, changed)])
        stored = self.get(changed.name)
        return changed.is_removed if stored is None else stored.token == changed.token

    def advance(self, rows: Sequence[SeriesRow]) -> None:
        """Write how far these series are booked, unless they were changed meanwhile."""
        self._write([(row.token, row) for row in rows])

    def _write(self, rows: Sequence[tuple[str, SeriesRow]]) -> None:
        values = [{"this": row.name, "was": token, **row._asdict()} for token, row in rows]
        if values:
            self._database.transact(
                lambda connection: connection.execute(self._unless_changed, values)
            )

    def remove(self, name: str, token: str) -> bool:
        """Delete a row of this token; return whether none of this name is left."""
        row = self._table.c
        self._database.execute(delete(self._table).where(row.name == name, row.token == token))
        return self.get(name) is None

    def take_due(self, now: datetime, *, lease: timedelta, limit: int) -> list[SeriesRow]:
        """Return series to book, which no other process then gets for the ``lease``."""
        row = self._table.c
        due = select(*self._columns).where(row.due_at <= now).order_by(row.due_at).limit(limit)

        def work(connection: Connection) -> list[SeriesRow]:
            rows = connection.execute(due.with_for_update(skip_locked=True)).all()
            if rows:
                names = one_of(row.name, [taken.name for taken in rows])
                connection.execute(update(self._table).where(names).values(due_at=now + lease))
            return [*map(SeriesRow._make, rows)]

        return self._database.transact(work)
