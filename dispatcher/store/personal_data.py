"""What the store knows of a recipient, to be erased: rows stay, and say nothing of a person."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, case, delete, func, select, update

from dispatcher.message import Outcome, Status, scope_name
from dispatcher.scope import NO_SCOPE
from dispatcher.store.database import Database
from dispatcher.store.schema import PAUSED_RECIPIENT

ERASED = "erased"
"""The error of an erased message or attempt that had one."""
_FINAL = tuple(each for each in Status if each.is_final)


class PersonalData:
    """What is stored of one recipient. Every call may be run again. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = database.tables

    def held(self, recipient: str, *, limit: int) -> list[UUID]:
        row = self._tables.messages.c
        query = select(row.id).where(
            row.recipient == recipient, self._tables.has_status(Status.HELD)
        )
        return [each.id for each in self._database.read(query.limit(limit))]

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
        row = messages.c
        ended = (row.recipient == recipient, tables.has_status(*_FINAL))
        query = select(row.id, row.idempotency_key, row.scopes).where(*ended)
        rows = self._database.read(query.order_by(row.id).limit(limit))
        ids = [each.id for each in rows]
        keys = [each.idempotency_key for each in rows if each.idempotency_key is not None]
        one_of = self._database.one_of
        these = one_of(row.id, ids)
        blanks = update(messages).values(
            scope=case((row.scope == scope_name(recipient), NO_SCOPE), else_=row.scope),
            last_error=case((row.last_error.is_not(None), ERASED)),
            recipient="", body={}, idempotency_key=None, trace=None, status_url=None,
            notified_status=None, claim_token=row.claim_token + 1,
        )  # fmt: skip
        renamed = {
            each.id: {kind: name for kind, name in each.scopes.items() if name != recipient}
            for each in rows
            if recipient in (each.scopes or {}).values()
        }

        def work(connection: Connection) -> None:
            connection.execute(blanks.where(these, *ended))
            # A retry may have come between: such a message is found again once it has ended.
            is_blank = select(row.id).where(these, row.recipient == "")
            done = list(connection.scalars(is_blank))
            of_message = one_of(attempts.c.message_id, done)
            error = case((attempts.c.error.is_not(None), ERASED))
            blank = {"error": error, "receipt": None}
            connection.execute(update(attempts).where(of_message).values(blank))
            # A worker that tells so late of a send would write them again: its token is gone.
            is_open = (attempts.c.outcome == Outcome.UNKNOWN.value, attempts.c.token > 0)
            forgotten = update(attempts).where(of_message, *is_open)
            connection.execute(forgotten.values(token=-attempts.c.token))
            connection.execute(
                delete(tables.keys).where(
                    tables.keys.c.idempotency_key.in_(keys), one_of(tables.keys.c.message_id, done)
                )
            )
            for message_id in renamed.keys() & set(done):
                scopes = renamed[message_id] or None
                connection.execute(
                    update(messages).where(row.id == message_id).values(scopes=scopes)
                )

        if ids:
            self._database.transact(work)
        return len(ids)

    def forget(self, recipient: str, *, keep_opt_out: bool) -> None:
        tables = self._tables
        pauses = tables.pauses.c
        is_own = (pauses.kind == PAUSED_RECIPIENT, pauses.name == scope_name(recipient))
        self._database.execute(delete(tables.pauses).where(*is_own))
        if not keep_opt_out:
            opt_outs = tables.suppressions
            self._database.execute(delete(opt_outs).where(opt_outs.c.recipient == recipient))

    def counting(self, name: str, message_ids: Sequence[UUID]) -> dict[UUID, bool]:
        row = self._tables.messages.c
        query = select(row.id, row.scope, row.scopes)
        rows = self._database.read_of(query, row.id, message_ids)
        return {each.id: name in (each.scope, *(each.scopes or {}).values()) for each in rows}
