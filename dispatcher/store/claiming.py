"""How messages are claimed: the statements of it, all at once or one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Float,
    Select,
    Update,
    and_,
    any_,
    bindparam,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from dispatcher.message import Status
from dispatcher.store.chosen import chosen
from dispatcher.store.columns import id_type
from dispatcher.store.instants import database_now, later
from dispatcher.store.schema import Tables

_NOW = database_now()
_BEGUN = ["message_id", "token", "started_at"]


class Claiming:
    """One claim of some messages, which may be run again: it knows by its own mark what it took."""

    def __init__(
        self,
        tables: Tables,
        message_ids: Sequence[UUID],
        *,
        ahead: timedelta,
        ttl: timedelta,
        takes: ColumnElement[bool],
        mark: UUID | None = None,
    ) -> None:
        self.mark = mark or uuid4()
        self._tables = tables
        self._takes = takes
        self._ids = list(message_ids)
        self._ahead = ahead.total_seconds()
        self._ttl = ttl.total_seconds()

    @property
    def values(self) -> dict[str, Any]:
        """What :func:`at_once` is given."""
        return {"ids": self._ids, "mark": self.mark, "ahead": self._ahead, "ttl": self._ttl}

    def step_by_step(self, connection: Connection) -> Sequence[Any]:
        """Claim in the transaction of this connection; also return what was claimed before."""
        tables = self._tables
        messages, attempts = tables.messages, tables.attempts
        these = messages.c.id.in_(self._ids)
        wanted = chosen(connection, _wanted(tables, and_(these, self._takes), self._ahead))
        connection.execute(_take(tables, self.mark, self._ttl).where(messages.c.id.in_(wanted)))
        mine = and_(these, messages.c.claimed_by == self.mark)
        is_begun = select(literal(1)).where(
            attempts.c.message_id == messages.c.id, attempts.c.token == messages.c.claim_token
        )
        columns = (messages.c.id, messages.c.claim_token, _starts_at(messages.c.next_attempt_at))
        begin = select(*columns).where(mine, ~is_begun.exists())
        connection.execute(insert(attempts).from_select(_BEGUN, begin))
        read = (
            select(*tables.message_columns, messages.c.claim_token, _NOW.label("now"))
            .where(mine)
            .order_by(messages.c.next_attempt_at, messages.c.id)
        )
        return connection.execute(read).all()


def at_once(tables: Tables, takes: ColumnElement[bool]) -> Select[Any]:
    """Return the statement that takes messages, begins their attempts and returns them.

    Like :class:`Claiming`, it takes none but those for which ``takes`` holds.
    """
    messages, attempts = tables.messages, tables.attempts
    these = messages.c.id == any_(bindparam("ids", type_=ARRAY(id_type())))
    wanted = _wanted(tables, and_(these, takes), bindparam("ahead", type_=Float())).cte("wanted")
    take = _take(tables, bindparam("mark", type_=id_type()), bindparam("ttl", type_=Float()))
    taken = (
        take.where(messages.c.id == wanted.c.id)
        .returning(*tables.message_columns, messages.c.claim_token)
        .cte("taken")
    )
    columns = (taken.c.id, taken.c.claim_token, _starts_at(taken.c.next_attempt_at))
    begun = insert(attempts).from_select(_BEGUN, select(*columns)).cte("begun")
    # The later the clock is read, the less a message that is not due yet waits in vain.
    return (
        select(*taken.c, func.clock_timestamp().label("now"))
        .order_by(taken.c.next_attempt_at, taken.c.id)
        .add_cte(begun)
    )


def _wanted(
    tables: Tables, these: ColumnElement[bool], ahead: ColumnElement[float] | float
) -> Select[Any]:
    messages = tables.messages
    return (
        select(messages.c.id)
        .where(
            these,
            tables.has_status(Status.SCHEDULED),
            messages.c.next_attempt_at <= later(_NOW, ahead),
            or_(messages.c.expires_at.is_(None), messages.c.expires_at > _NOW),
        )
        .order_by(messages.c.id)
        .with_for_update(skip_locked=True)
    )


def _take(tables: Tables, mark: Any, ttl: ColumnElement[float] | float) -> Update:
    messages = tables.messages
    return (
        update(messages)
        .where(tables.has_status(Status.SCHEDULED))
        .values(
            status=Status.SENDING.value,
            claim_token=messages.c.claim_token + 1,
            attempt_count=messages.c.attempt_count + 1,
            claimed_by=mark,
            claim_expires_at=later(_NOW, ttl),
        )
    )


def _starts_at(due_at: ColumnElement[Any]) -> ColumnElement[Any]:
    """No attempt begins before its message is due, though it was claimed a moment earlier."""
    return case((due_at > _NOW, due_at), else_=_NOW)
