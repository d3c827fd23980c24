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
    """

    name: str
    token: str
    definition: Mapping[str, Any]
    booked_until: datetime | None
    due_at: datetime | None


class SeriesRows:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.tables.events
        row = self._table.c
        self._columns = [row[name] for name in SeriesRow._fields]
        self._advance = (
            update(self._table)
            .where(row.name == bindparam("of"), row.token == bindparam("by"))
            .values({name: bindparam(name) for name in ("booked_until", "due_at", "definition")})
        )

    def add(self, row: SeriesRow) -> bool:
        return self._database.add_if_absent(self._table, **row._asdict())

    def get(self, name: str) -> SeriesRow | None:
        rows = self._database.read(select(*self._columns).where(self._table.c.name == name))
        return SeriesRow._make(rows[0]) if rows and rows[0].definition is not None else None

    def all(self, *, size: int, after: str = "") -> Iterator[SeriesRow]:
        row = self._table.c
        query = select(*self._columns).where(row.definition.is_not(None), row.name > after)
        for page in pages(self._database.read, query, (row.name,), size):
            yield from map(SeriesRow._make, page)

    def change(self, token: str, changed: SeriesRow) -> bool:
        """Write a row unless another call has changed it since it had this token."""
        row = self._table.c
        this = update(self._table).where(row.name == changed.name, row.token == token)
        if self._changes_one(this.values(**changed._asdict())):
            return True
        stored = self.get(changed.name)  # a reply may have been lost, and the statement run again
        return stored is not None and stored.token == changed.token

    def remove(self, name: str, token: str) -> bool:
        row = self._table.c
        return self._changes_one(delete(self._table).where(row.name == name, row.token == token))

    def take_due(self, now: datetime, *, lease: timedelta, limit: int) -> list[SeriesRow]:
        """Return series to look at, which no other process then gets for the ``lease``."""
        row = self._table.c
        due = select(*self._columns).where(row.due_at <= now).order_by(row.due_at).limit(limit)

        def work(connection: Connection) -> list[SeriesRow]:
            rows = connection.execute(due.with_for_update(skip_locked=True)).all()
            if rows:
                names = one_of(row.name, [taken.name for taken in rows])
                connection.execute(update(self._table).where(names).values(due_at=now + lease))
            return [*map(SeriesRow._make, rows)]

        return self._database.transact(work)

    def hold(self, rows: Sequence[SeriesRow], *, until: datetime) -> None:
        """Let no other process take these series before, unless they were changed meanwhile."""
        row = self._table.c
        these = one_of(row.name, [held.name for held in rows]), row.token.in_(r.token for r in rows)
        self._database.execute(update(self._table).where(*these).values(due_at=until))

    def advance(self, rows: Sequence[SeriesRow]) -> None:
        """Write how far these series are booked, unless they were changed meanwhile."""
        values = [
            {"of": row.name, "by": row.token, "booked_until": row.booked_until, "due_at": row.due_at,
             "definition": row.definition}
            for row in rows
        ]  # fmt: skip
        if values:
            self._database.transact(lambda connection: connection.execute(self._advance, values))

    def _changes_one(self, statement: Any) -> bool:
        return bool(self._database.run(lambda connection: connection.execute(statement).rowcount))
