"""Transactions of callers in memory: what joins them is stored if and when they commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dispatcher.errors import StoreUnavailable
from dispatcher.message import Message
from dispatcher.store import Addition
from dispatcher.testing.memory.joined import MemoryTransaction
from dispatcher.testing.memory.tables import Tables

OnEnd = Callable[[Sequence[Any], bool], None]


@dataclass(slots=True)
class Watch:
    """What the use case remembers of a transaction."""

    joined: list[Any] = field(default_factory=list)
    undone: bool = False


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

    def unsent(self, messages: Sequence[Message]) -> Any:
        return self._do(lambda: self._reached.unsent(messages))

    def add(self, addition: Addition) -> Any:
        return self._do(lambda: self._reached.insert(addition))

    def check_not_suppressed(self, recipient: str, channel: str) -> None:
        self._do(lambda: self._reached.check_not_suppressed(recipient, channel))

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
