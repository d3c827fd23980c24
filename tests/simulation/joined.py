"""Transactions of callers in memory: what joins them is stored if and when they commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dispatcher.errors import StoreUnavailable, Suppressed
from dispatcher.message import Message
from tests.simulation.tables import Staged, Tables

OnEnd = Callable[[Sequence[Any], bool], None]


@dataclass(slots=True)
class Watch:
    """What the use case remembers of a transaction."""

    joined: list[Any] = field(default_factory=list)
    undone: bool = False


class MemoryTransaction:
    """One transaction on the database: nobody else sees what is in it."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._staged: dict[UUID, Staged] = {}
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

    def insert(self, message: Message, *, enqueue_at: datetime, fingerprint: str | None) -> bool:
        self._check_open()
        tables, key = self._tables, message.idempotency_key
        self.check_wanted(message.recipient, message.channel)
        if message.id in tables.messages or message.id in tables.void or key in tables.keys:
            return False
        if message.id in self._staged or (key is not None and self.with_key(key) is not None):
            return False
        tables.check_free(message.id, key)
        self._staged[message.id] = Staged(message, enqueue_at, fingerprint)
        return True

    def check_wanted(self, recipient: str, channel: str) -> None:
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
            self._tables.insert(
                each.message, enqueue_at=each.enqueue_at, fingerprint=each.fingerprint
            )
        self.close()

    def close(self) -> None:
        """End it; what it has not committed is gone."""
        self._tables.open[:] = [each for each in self._tables.open if each is not self._staged]

    @property
    def is_open(self) -> bool:
        return any(each is self._staged for each in self._tables.open)

    def _check_open(self) -> None:
        if not self.is_open:
            raise StoreUnavailable("the connection to the database broke")


class Session:
    """A caller's session as its process reaches it. A line that breaks ends its transaction."""

    def __init__(self, transaction: MemoryTransaction, reached: Any) -> None:
        self._transaction = transaction
        self._reached = reached
        self._on_end: OnEnd | None = None
        self.watch = Watch()

    @property
    def is_open(self) -> bool:
        """Whether the transaction is under way."""
        return self._transaction.is_open

    def join(self, on_end: OnEnd) -> Session:
        """Let the use case be told of the end."""
        self._on_end = on_end
        return self

    def with_key(self, idempotency_key: str) -> Any:
        return self._do(lambda: self._reached.with_key(idempotency_key))

    def add(self, message: Message, **more: Any) -> Any:
        del more["status_url"]
        return self._do(lambda: self._reached.insert(message, **more))

    def check_wanted(self, recipient: str, channel: str) -> None:
        self._do(lambda: self._reached.check_wanted(recipient, channel))

    def present(self, message_ids: Sequence[UUID]) -> Any:
        return self._do(lambda: self._reached.present(message_ids))

    def commit(self) -> None:
        """Commit, and tell the use case. Raises StoreUnavailable where no answer came."""
        try:
            self._reached.commit()
        except StoreUnavailable:
            self._end(is_certain=False)
            raise
        self._end(is_certain=True)

    def rollback(self) -> None:
        """End it without a trace, and tell the use case."""
        self._end(is_certain=True)

    def close(self) -> None:
        """Let the database see that nobody is there any more."""
        self._transaction.close()

    def _do(self, statement: Callable[[], Any]) -> Any:
        try:
            return statement()
        except StoreUnavailable as error:
            if not error.refused:
                self.close()
            raise

    def _end(self, *, is_certain: bool) -> None:
        self.close()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.watch.joined, is_certain)


class MemoryJoined:
    """Stands in for ``dispatcher.store.JoinedMessages`` with such sessions."""

    def __init__(self, tables: Tables, reached: Callable[[object], Any]) -> None:
        self._tables = tables
        self._reached = reached(self)

    def join(self, session: Session, on_end: OnEnd) -> Session:
        return session.join(on_end)

    def stored(self, message_ids: Sequence[UUID]) -> Any:
        return self._reached.look(message_ids)

    def look(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those that are committed."""
        return {each for each in message_ids if each in self._tables.messages}
