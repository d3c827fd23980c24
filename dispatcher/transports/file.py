"""Appends one JSON line per message to a file."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Protocol

from dispatcher.clock import SystemClock
from dispatcher.errors import TemporaryFailure
from dispatcher.message import Message, dump_json


class _Now(Protocol):
    def now(self) -> datetime: ...


class FileTransport:
    """Writes to ``path``, which many threads and processes may share.

    A line is one write in append mode, and the operating system has it before it counts as sent: a
    killed process loses none. Its fields: id, channel, recipient, body, send_at, sent_at (both
    ISO 8601 UTC), attempt.
    """

    def __init__(self, path: Path | str, clock: _Now | None = None) -> None:
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def send(self, message: Message) -> str | None:
        """Append ``message``. Raises TemporaryFailure when the disk takes no whole line."""
        line = (
            dump_json(
                {
                    "id": str(message.id),
                    "channel": message.channel,
                    "recipient": message.recipient,
                    "body": message.body,
                    "send_at": message.send_at.isoformat(),
                    "sent_at": self._clock.now().isoformat(),
                    "attempt": message.attempt_count,
                }
            ).encode()
            + b"\n"
        )
        try:
            target = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = os.write(target, line)
                if written != len(line):
                    os.write(target, b"\n")  # the next message begins on a line of its own
            finally:
                os.close(target)
        except OSError as error:
            raise TemporaryFailure(f"cannot write: {error.strerror}") from error
        if written != len(line):
            raise TemporaryFailure("the disk took only part of the line")
        return None
