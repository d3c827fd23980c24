"""Keeps messages in a list: the double for tests."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.message import Message


class MemoryTransport:
    """Remembers what was sent in ``sent``.

    Set ``before`` to something that raises to see failures handled.
    """

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.before: Callable[[Message], None] | None = None

    def send(self, message: Message) -> str | None:
        """Remember ``message``."""
        if self.before is not None:
            self.before(message)
        self.sent.append(message)
        return f"memory-{len(self.sent)}"
