"""Pauses: nothing of a channel, recipient, campaign or another scope is sent until it is resumed.

Every claim reads this table, so that a paused message is not sent, however it was enqueued. The
sweep does not enqueue it, and ``catch_up`` leaves it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import delete, select, update

from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later

_TRIES = 10
_KEPT = timedelta(hours=1)
"""How long a pause that has ended is stored: longer than any sweep looks back for one."""


class Pause(NamedTuple):
    """Messages of one channel, recipient, campaign or other scope that are not sent.

    ``paused_at`` is when it began, by the database's clock (aware UTC).
    """

    kind: str
    name: str
    paused_at: datetime


class Pauses:
    """The pauses. Every call may be run again. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pauses = database.tables.pauses

    def add(self, kind: str, name: str) -> None:
        """Begin a pause; one that is in force keeps its time."""
        row, now = self._pauses.c, database_now()
        this = (row.kind == kind, row.name == name)
        begin = update(self._pauses).where(*this, row.resumed_at.is_not(None))
        for _ in range(_TRIES):
            self._database.add_if_absent(self._pauses, kind=kind, name=name, paused_at=now)
            self._database.execute(begin.values(paused_at=now, resumed_at=None))
            # A resume in between may have forgotten a row that had ended long ago.
            if self._database.read(select(row.kind).where(*this)):
                return
        raise StoreUnavailable("the pause was forgotten again and again", remedy="try again")

    def end(self, kind: str, name: str) -> None:
        row, now = self._pauses.c, database_now()
        self._database.execute(
            update(self._pauses)
            .where(row.kind == kind, row.name == name, row.resumed_at.is_(None))
            .values(resumed_at=now)
        )
        self._database.execute(delete(self._pauses).where(row.resumed_at < later(now, -_KEPT)))

    def in_force(self) -> Sequence[Pause]:
        row = self._pauses.c
        query = select(row.kind, row.name, row.paused_at).where(row.resumed_at.is_(None))
        return [Pause(*each) for each in self._database.read(query.order_by(row.kind, row.name))]
