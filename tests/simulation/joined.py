"""Transactions of callers, on lines that break and in processes that die."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from dispatcher.errors import StoreUnavailable
from dispatcher.store.outbox import JoinedMessages
from tests.simulation.scheduler import Killed, Process

OnEnd = Callable[[Sequence[Any], bool], None]
Reach = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _End:
    """What a process does at the end of a transaction; nothing once it is dead."""

    process: Process
    on_end: OnEnd

    def __call__(self, joined: Sequence[Any], is_certain: bool) -> None:
        with suppress(Killed):  # the pool gets its connection back
            if self.process.alive:
                self.on_end(joined, is_certain)


class JoinedLine:
    """The messages of transactions as a process reaches them; one ends where its line breaks."""

    def __init__(self, real: JoinedMessages, process: Process, reached: Reach) -> None:
        self._real = real
        self._process = process
        self._reached = reached

    def join(self, session: Session, on_end: OnEnd) -> Any:
        transaction = self._real.join(session, _End(self._process, on_end))
        return self._reached(transaction, breaks=session.connection().invalidate)

    def stored(self, message_ids: Sequence[UUID]) -> Any:
        return self._reached(self._real).stored(message_ids)


class CallersSession(Session):
    def __init__(self, connection: Connection, process: Process) -> None:
        super().__init__(connection)
        self._line = connection
        self._process = process

    @property
    def is_open(self) -> bool:
        return not self._line.invalidated

    def close(self) -> None:
        """Close it and its connection, also in a process that has died."""
        if not self._process.alive and self.is_open:
            self._line.invalidate()
        super().close()
        self._line.close()


def committed(line: Any, reached: Any) -> None:
    """Commit as a process reaches it; how it ends is what the driver says."""
    try:
        reached.commit()
    except StoreUnavailable:
        line.driver_connection.close()
        raise sqlite3.ProgrammingError("Cannot operate on a closed database.") from None
