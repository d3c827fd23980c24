"""Transports without a provider: to standard output, into a file, into a list."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from dispatcher.errors import TemporaryFailure
from dispatcher.message import Message, dump_json, visible_text
from dispatcher.settings import make_private
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.times.send_time import as_text


class ConsoleTransport:
    """Prints a line with the recipient and the body. No terminal obeys what they say."""

    def __init__(self) -> None:
        self._lock = Lock()

    def send(self, message: Message) -> str | None:
        line = f"[{message.channel}] to {message.recipient}: {dump_json(message.body)}"
        with self._lock:
            sys.stdout.write(f"{visible_text(line)}\n")
            sys.stdout.flush()
        return None


class FileTransport:
    """Writes to ``path``, which many threads and processes may share.

    A line is one write under a lock of the file, and the operating system has it before it counts
    as sent: a killed process loses none. Its fields: id, channel, recipient, body, send_at,
    sent_at (both ISO 8601 UTC), attempt.
    """

    def __init__(self, path: Path | str, clock: Clock | None = None) -> None:
        self._path = Path(path)
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> str | None:
        """Append ``message``. Raises TemporaryFailure when the disk takes no whole line."""
        fields = {
            "id": str(message.id),
            "channel": message.channel,
            "recipient": message.recipient,
            "body": message.body,
            "send_at": as_text(message.send_at),
            "sent_at": as_text(self._clock.now()),
            "attempt": message.attempt_count,
        }
        line = dump_json(fields).encode() + b"\n"
        try:
            make_private(self._path.parent)
            target = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
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


class MemoryTransport:
    """Remembers what was sent in ``sent``.

    Set ``before`` to something that raises to see failures handled.
    """

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.before: Callable[[Message], None] | None = None

    def send(self, message: Message) -> str | None:
        if self.before is not None:
            self.before(message)
        self.sent.append(message)
        return f"memory-{len(self.sent)}"
