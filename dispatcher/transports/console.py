"""Writes one line per message to standard output: for trying things out.

No terminal obeys what a message says: see :func:`~dispatcher.message.visible_text`.
"""

from __future__ import annotations

import sys
from threading import Lock

from dispatcher.message import Message, dump_json, visible_text


class ConsoleTransport:
    """Prints the recipient and the body."""

    def __init__(self) -> None:
        self._lock = Lock()

    def send(self, message: Message) -> str | None:
        """Print ``message``."""
        line = f"[{message.channel}] to {message.recipient}: {dump_json(message.body)}"
        with self._lock:
            sys.stdout.write(f"{visible_text(line)}\n")
            sys.stdout.flush()
        return None
