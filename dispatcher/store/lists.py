"""Opt-outs, pauses, settings of single scopes, and what the store knows of one recipient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, and_, case, delete, func, select, update

from dispatcher.message import Outcome, Status, scope_name
from dispatcher.scope import NO_SCOPE
from dispatcher.store.database import Database
from dispatcher.store.engines.base import pages
from dispatcher.store.engines.types import database_now, later, one_of
from dispatcher.store.schema import AS_NAMED, EVERY_CHANNEL, PAUSED_RECIPIENT, Tables

REASON = "its recipient is suppressed"
ERASED = "erased"
"""The error of an erased message or attempt that had one."""
_FINAL = tuple(status for status in Status if status.is_final)
_KEPT = timedelta(hours=1)
"""How long a pause that has ended is stored: longer than any sweep looks back for one."""


class Suppression(NamedTuple):
    """One recipient gets nothing on one channel, None for any, since ``created_at`` (aware UTC)."""

    recipient: str
    channel: str | None
    created_at: datetime


def is_suppressed(tables: Tables, connection: Connection, recipient: str, channel: str) -> bool:
    names = {"recipient": recipient, "channel": channel}
    return bool(connection.scalar(tables.opt_out, names, execution_options=AS_NAMED))


class Suppressions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables
        row = database.tables.suppressions.c
        self._of = select(row.recipient, row.channel).where(one_of(row.recipient, "values"))

    def add(self, recipient: str, channel: str | None) -> None:
        row = {"recipient": recipient, "channel": channel or EVERY_CHANNEL}
        table = self._tables.suppressions
        self._database.add_if_absent(table, created_at=database_now(), **row)

    def remove(self, recipient: str, channel: str | None) -> None:
        suppressions = self._tables.suppressions
        rows = suppressions.c
        statement = delete(suppressions).where(
            rows.recipient == recipient, rows.channel == (channel or EVERY_CHANNEL)
        )
        self._database.execute(statement)

    def among(self, recipients: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        pairs = set(recipients)
        names = list({recipient for recipient, _ in pairs})
        stored = set(map(tuple, self._database.read_of(self._of, names)))
        return {
            (recipient, channel)
            for recipient, channel in pairs
            if not stored.isdisjoint([(recipient, channel), (recipient, EVERY_CHANNEL)])
        }

    def stored(self, recipient: str | None, *, size: int) -> Iterator[Suppression]:
        columns = self._tables.suppressions.c
        key = (columns.recipient, columns.channel)
        query = select(*key, columns.created_at)
        if recipient is not None:
            query = query.where(columns.recipient == recipient)
        for page in pages(self._database.read, query, key, size):
            for row in page:
                yield Suppression(row.recipient, row.channel or None, row.created_at)


class Pause(NamedTuple):
    """Messages of one scope or campaign that are not sent since ``paused_at`` (aware UTC)."""

    kind: str
    name: str
    paused_at: datetime


class Pauses:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pauses = database.tables.pauses

    def add(self, kind: str, name: str) -> None:
        row, now = self._pauses.c, database_now()
        this = (row.kind == kind, row.name == name)
        ended = update(self._pauses).where(*this, row.resumed_at.is_not(None))
        # In this order: else a resume in between might delete the row of a pause long ended.
        self._database.execute(ended.values(paused_at=now, resumed_at=None))
        self._database.add_if_absent(self._pauses, kind=kind, name=name, paused_at=now)

    def end(self, kind: str, name: str) -> None:
        row, now = self._pauses.c, database_now()
        self._database.execute(
            update(self._pauses)
            .where(row.kind == kind, row.name == name, row.resumed_at.is_(None))
            .values(resumed_at=now)
        )
        self._database.execute(delete(self._pauses).where(row.resumed_at < later(now, -_KEPT)))

    def in_force(self) -> Sequence[Pause]:
        columns = self._pauses.c
        query = select(*(columns[name] for name in Pause._fields))
        query = query.where(columns.resumed_at.is_(None)).order_by(columns.kind, columns.name)
        return [Pause._make(row) for row in self._database.read(query)]


class ScopeSetting(NamedTuple):
    """What one scope has of its own since ``changed_at``; None: it has none, or none any more."""

    kind: str
    name: str
    quotas: tuple[str, ...] | None
    limits: tuple[str, ...] | None
    changed_at: datetime


class ScopeSettings:
    """Quotas and limits of single scopes. A row without any stays, so that all processes learn."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.tables.scope_settings

    def put(self, kind: str, name: str, field: str, texts: Sequence[str] | None) -> None:
        """Write the ``quotas`` or ``limits`` of a scope; None ends them."""
        row, now = self._table.c, database_now()
        values = {field: texts and list(texts), "changed_at": now}
        if texts is None or not self._database.add_if_absent(
            self._table, kind=kind, name=name, **values
        ):
            of_this = update(self._table).where(row.kind == kind, row.name == name)
            self._database.execute(of_this.values(**values))

    def changed(self, within: timedelta | None = None) -> list[ScopeSetting]:
        """Return what was changed within that time; by default all that there is."""
        row = self._table.c
        query = select(row.kind, row.name, row.quotas, row.limits, row.changed_at)
        if within is not None:
            query = query.where(row.changed_at > later(database_now(), -within))
        return [ScopeSetting(kind, name, quotas and tuple(quotas), limits and tuple(limits), at)
                for kind, name, quotas, limits, at in self._database.read(query)]  # fmt: skip


class PersonalData:
    """What is stored of one recipient. Every call may be run again. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def under_way(self, recipient: str) -> int:
        row = self._tables.messages.c
        left = (row.recipient == recipient, row.finished_at.is_(None))
        return int(self._database.read(select(func.count()).where(*left))[0][0])

    def blank(self, recipient: str, *, limit: int) -> int:
        """Blank messages of a recipient that have ended; return how many there were.

        What counts and quotas of others need stays. The token stops a retry judged before.
        """
        tables = self._tables
        messages, attempts = tables.messages, tables.attempts
        columns = messages.c
        ended = (columns.recipient == recipient, tables.has_status(*_FINAL))
        query = select(columns.id, columns.idempotency_key, columns.scopes).where(*ended)
        # By an expression: in the order of the primary key MariaDB would lock rows of others.
        order = func.coalesce(columns.id, columns.id)
        query = query.order_by(order).limit(limit).with_for_update()
        blanks = update(messages).values(
            scope=case((columns.scope == scope_name(recipient), NO_SCOPE), else_=columns.scope),
            last_error=case((columns.last_error.is_not(None), ERASED)),
            recipient="", body={}, idempotency_key=None, trace=None, status_url=None,
            notified_status=None, delayed_by=None, event=None, wish=None,
            claim_token=columns.claim_token + 1,
        )  # fmt: skip

        def work(connection: Connection) -> int:
            rows = connection.execute(query).all()
            if not rows:
                return 0
            ids = [row.id for row in rows]
            connection.execute(blanks.where(tables.has_id(ids)))
            of_message = one_of(attempts.c.message_id, ids)
            # A worker that tells so late of a send would write them again: its token is gone.
            is_open = and_(attempts.c.outcome == Outcome.UNKNOWN.value, attempts.c.token > 0)
            blank = {
                "error": case((attempts.c.error.is_not(None), ERASED)), "receipt": None,
                "token": case((is_open, -attempts.c.token), else_=attempts.c.token),
            }  # fmt: skip
            connection.execute(update(attempts).where(of_message).values(blank))
            keys = [row.idempotency_key for row in rows if row.idempotency_key is not None]
            is_theirs = one_of(tables.keys.c.message_id, ids)
            of_key = tables.keys.c.idempotency_key.in_(keys)
            connection.execute(delete(tables.keys).where(of_key, is_theirs))
            for row in rows:
                if recipient in (row.scopes or {}).values():
                    left = {kind: name for kind, name in row.scopes.items() if name != recipient}
                    renamed = update(messages).where(columns.id == row.id)
                    connection.execute(renamed.values(scopes=left or None))
            return len(rows)

        return self._database.transact(work)

    def forget(self, recipient: str, *, keep_opt_out: bool) -> None:
        tables = self._tables
        pauses = tables.pauses.c
        is_own = (pauses.kind == PAUSED_RECIPIENT, pauses.name == scope_name(recipient))
        self._database.execute(delete(tables.pauses).where(*is_own))
        own = tables.scope_settings
        self._database.execute(delete(own).where(own.c.name == scope_name(recipient)))
        if not keep_opt_out:
            opt_outs = tables.suppressions
            self._database.execute(delete(opt_outs).where(opt_outs.c.recipient == recipient))

    def counting(self, name: str, message_ids: Sequence[UUID]) -> dict[UUID, bool]:
        columns = self._tables.messages.c
        query = select(columns.id, columns.scope, columns.scopes)
        rows = self._database.read_of(query.where(self._tables.has_id("values")), message_ids)
        return {row.id: name in (row.scope, *(row.scopes or {}).values()) for row in rows}
