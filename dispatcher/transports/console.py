"""Writes one line per message to standard output: for trying things out."""

from __future__ import annotations

import sys
from threading import Lock

from dispatcher.message import Message, dump_json


class ConsoleTransport:
    """Prints the recipient and the body."""

    def __init__(self) -> None:
        self._lock = Lock()

    def send(self, message: Message) -> str | None:
        """Print ``message``."""
        with self._lock:
            sys.stdout.write(
                f"[{message.channel}] to {message.recipient}: {dump_json(message.body)}\n"
            )
            sys.stdout.flush()
        return None
