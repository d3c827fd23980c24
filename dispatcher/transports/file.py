"""Appends one JSON line per message to a file."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from dispatcher.errors import TemporaryFailure
from dispatcher.file_modes import make_private
from dispatcher.message import Message, dump_json
from dispatcher.times.clock import SystemClock
from dispatcher.times.send_time import as_text


class _Now(Protocol):
    def now(self) -> datetime: ...


class FileTransport:
    """Writes to ``path``, which many threads and processes may share.

    A line is one write under a lock of the file, and the operating system has it before it counts
    as sent: a killed process loses none. Its fields: id, channel, recipient, body, send_at,
    sent_at (both ISO 8601 UTC), attempt.
    """

    def __init__(self, path: Path | str, clock: _Now | None = None) -> None:
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._made = make_private(self._path.parent)

    def send(self, message: Message) -> str | None:
        """Append ``message``. Raises TemporaryFailure when the disk takes no whole line."""
        line = (
            dump_json(
                {
                    "id": str(message.id),
                    "channel": message.channel,
                    "recipient": message.recipient,
                    "body": message.body,
                    "send_at": as_text(message.send_at),
                    "sent_at": as_text(self._clock.now()),
                    "attempt": message.attempt_count,
                }
            ).encode()
            + b"\n"
        )
        try:
            target = self._open()
            try:
                fcntl.flock(target, fcntl.LOCK_EX)  # until the close
                size = os.fstat(target).st_size
                if size and os.pread(target, 1, size - 1) != b"\n":
                    line = b"\n" + line  # the disk once took only part of a line
                written = os.write(target, line)
            finally:
                os.close(target)
        except OSError as error:
            raise TemporaryFailure(f"cannot write: {error.strerror}") from error
        if written != len(line):
            raise TemporaryFailure("the disk took only part of the line")
        return None

    def close(self) -> None:
        """Remove the folders that were made for nothing."""
        with suppress(OSError):
            for each in self._made:
                each.rmdir()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            return os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            make_private(self._path.parent)
            return os.open(self._path, flags, 0o600)
