"""Transactions of callers in memory: what joins them is stored if and when they commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, event
from sqlalchemy.sql.elements import SavepointClause

from dispatcher.errors import StoreUnavailable, Suppressed
from dispatcher.message import Message
from dispatcher.store import Addition
from dispatcher.store.outbox import Joinable, Watch, connection_of, watch_of
from dispatcher.testing.memory.tables import Tables

OnEnd = Callable[[Sequence[Any], bool], None]


class MemoryTransaction:
    """One transaction on the database: others do not see its rows."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._staged: dict[UUID, Addition] = {}
        tables.open.append(self._staged)

    def with_key(self, idempotency_key: str) -> tuple[Message, str] | None:
        self._check_open()
        for each in self._staged.values():
            if each.message.idempotency_key == idempotency_key:
                return each.message, each.fingerprint or ""
        known = self._tables.keys.get(idempotency_key)
        if known is None:
            return None
        row = self._tables.messages[known]
        return row.message(), row.fingerprint or ""

    def insert(self, addition: Addition) -> bool:
        self._check_open()
        message, tables = addition.message, self._tables
        key = message.idempotency_key
        self.check_not_suppressed(message.recipient, message.channel)
        if message.id in tables.messages or message.id in tables.void or message.id in self._staged:
            return False
        known = None if key is None else self.with_key(key)
        is_taken_over = known is not None and known[0].id == addition.supersedes
        if known is not None and not (is_taken_over and tables.is_unsent(known[0].id)):
            return False
        tables.check_free(message.id, key)
        self._staged[message.id] = addition
        return True

    def unsent(self, messages: Sequence[Message]) -> set[UUID]:
        self._check_open()
        stored = [each.id for each in messages if each.id not in self._staged]
        return {each for each in stored if self._tables.is_unsent(each)}

    def check_not_suppressed(self, recipient: str, channel: str) -> None:
        self._check_open()
        if self._tables.is_suppressed(recipient, channel):
            raise Suppressed(channel)

    def present(self, message_ids: Sequence[UUID]) -> set[UUID]:
        self._check_open()
        return {
            each for each in message_ids if each in self._staged or each in self._tables.messages
        }

    def commit(self) -> None:
        self._check_open()
        for each in self._staged.values():
            self._tables.insert(each)
        self.close()

    def close(self) -> None:
        """End it; what it has not committed is gone."""
        self._tables.open[:] = [each for each in self._tables.open if each is not self._staged]

    def keep_first(self, many: int) -> None:
        """Undo what was added after so many messages."""
        for message_id in list(self._staged)[many:]:
            del self._staged[message_id]

    def __len__(self) -> int:
        return len(self._staged)

    @property
    def is_open(self) -> bool:
        """Whether it is under way."""
        return any(each is self._staged for each in self._tables.open)

    def _check_open(self) -> None:
        if not self.is_open:
            raise StoreUnavailable("the connection to the database broke")


class MemoryJoined:
    """Stands in for ``dispatcher.store.JoinedMessages``: messages in sessions of SQLAlchemy.

    The database of the session may be any: the messages lie in memory, and a session's COMMIT and
    ROLLBACK decide about them. A COMMIT that the database refuses counts as one that it took.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._under_way: dict[int, _Joined] = {}

    def join(self, session: Joinable, on_end: OnEnd) -> _Joined:
        connection = connection_of(session)
        if not connection.in_transaction():
            connection.begin()
        known = self._under_way.get(id(connection))
        if known is not None and known.is_open and known.of(connection):
            return known

        def ended(joined: Sequence[Any], is_certain: bool) -> None:
            del self._under_way[id(connection)]
            if joining.watch.may_commit:
                joining.commit()
            else:
                joining.close()
            on_end(joined, is_certain)

        watch: Watch[Any] = watch_of(connection, ended)
        joining = self._under_way[id(connection)] = _Joined(self._tables, connection, watch)
        return joining

    def stored(self, message_ids: Sequence[UUID]) -> set[UUID]:
        return {each for each in message_ids if each in self._tables.messages}


class _Joined(MemoryTransaction):
    """Stands in for ``dispatcher.store.outbox.JoinedTransaction``."""

    def __init__(self, tables: Tables, connection: Connection, watch: Watch[Any]) -> None:
        super().__init__(tables)
        self.watch = watch
        self.add = self.insert
        self._connection = connection
        self._savepoints: dict[str, int] = {}
        # The event "savepoint" comes before it has a name.
        event.listen(connection, "before_execute", self._begin_savepoint)
        event.listen(connection, "rollback_savepoint", self._undo_savepoint)

    def of(self, connection: Connection) -> bool:
        """Whether it is a transaction of this connection."""
        return connection is self._connection

    def _begin_savepoint(self, _: Connection, statement: object, *__: object) -> None:
        if isinstance(statement, SavepointClause) and self.is_open:
            self._savepoints[statement.ident] = len(self)

    def _undo_savepoint(self, _: Connection, name: str, __: object) -> None:
        if self.is_open:
            self.keep_first(self._savepoints.get(name, 0))
