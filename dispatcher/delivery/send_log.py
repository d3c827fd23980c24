"""Send logs: the files in which a worker notes its claims, and each send right before it begins.

A process that dies leaves its files. A message without a note of its send was never given to a
transport: it goes back, instead of counting as tried with an unknown outcome. A file proves that
only where its process is dead or has left it (the lock tells), the machine was not started again
since and the file is no copy (its seal tells), and every note could be written: decision 0035.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

from dispatcher.settings import make_private

if os.name == "posix":  # Windows, where programs may submit, has no send logs
    import fcntl

log = logging.getLogger(__name__)

_DIGITS = 32  # of a message's id
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LEFT = "left"
"""The last line of a log that a living process leaves to rescue."""


@dataclass(slots=True)
class ClaimLog:
    """The file of one claim, named by its ``mark``. Without a ``descriptor`` it notes nothing."""

    mark: UUID
    path: Path = Path()
    descriptor: int | None = None
    is_kept: bool = False
    """Whether :meth:`close` leaves the file to rescue: the store may still have the claim."""

    def write(self, line: str) -> bool:
        """Write a line; return False where a part of it may be missing."""
        if self.descriptor is None:
            return True
        data = line.encode() + b"\n"
        problem: str | None = "only a part was written"
        try:
            if os.write(self.descriptor, data) == len(data):
                return True
        except OSError as error:
            problem = error.strerror
        log.warning(
            "could not write to the send log %s: %s; without it all messages of the claim have an "
            "unknown outcome if the worker is killed", self.path, problem,
        )  # fmt: skip
        return False

    def begin(self, message_id: UUID) -> bool:
        """Note that a send begins; return False where it must not begin."""
        # Without a note the file must go: then it proves nothing, and the send may begin.
        return self.write(message_id.hex) or _delete(self.path)

    def close(self) -> None:
        """Delete the file or leave it, once no further send begins."""
        descriptor = self.descriptor
        if descriptor is None:
            return
        if self.is_kept and self.write(_LEFT):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child of this process may have the file, too
        else:
            _delete(self.path)  # while it is locked, so that no rescue reads it
        self.descriptor = None
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class LeftLog:
    """The send log of a claim, left by a process that ``died``, or that lives and gave it up."""

    mark: UUID
    unbegun: tuple[UUID, ...]
    died: bool = True


class SendLogs:
    """The send logs of this process, and those that other processes of this machine have left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_warned = False

    def open(self, message_ids: Sequence[UUID]) -> ClaimLog:
        """Return the log of a claim to be made. Where no file can be made it notes nothing."""
        mark = uuid4()
        path = self._folder / mark.hex
        try:
            descriptor = _locked_file(path)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "no send logs in %s (%s): if this worker is killed, every message that it has "
                    "claimed has an unknown outcome; set data_dir to a folder that it can write to",
                    self._folder, error.strerror,
                )  # fmt: skip
            return ClaimLog(mark)
        self._has_warned = False
        send_log = ClaimLog(mark, path, descriptor)
        if send_log.write(" ".join([_seal(descriptor), *(id_.hex for id_ in message_ids)])):
            return send_log
        send_log.close()
        return ClaimLog(mark)

    def consume(self, act: Callable[[LeftLog], object], *, limit: int) -> bool:
        """Call ``act`` with each log that is left, and delete the log when ``act`` has returned.

        Stop when ``limit`` are deleted; return False where more are left. What ``act`` raises is
        raised; the next call begins with that log again.
        """
        try:
            paths = sorted(self._folder.iterdir())
        except OSError:
            return True
        for path in paths:
            descriptor = _lock_of_the_dead(path)
            if descriptor is None:
                continue
            try:
                if not limit:
                    return False
                left = _read(path, descriptor)
                if left is not None and left.unbegun:
                    act(left)
                if _delete(path):  # a file that stays must not use up every turn
                    limit -= 1
            finally:
                os.close(descriptor)
        return True


def _locked_file(path: Path) -> int:
    """Make a file that is locked until it is closed; return its descriptor. Raises OSError."""
    _boot_id()  # without it a file would prove nothing
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        make_private(path.parent)
        descriptor = os.open(path, flags, 0o600)
    try:
        # A rescue that was faster deletes the empty file: then its notes prove nothing, either.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        _delete(path)
        os.close(descriptor)
        raise
    return descriptor


def _delete(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("could not delete the send log %s: %s", path, error.strerror)
        return False
    return True


def _read(path: Path, descriptor: int) -> LeftLog | None:
    """Read a file; None where it proves nothing.

    A line without an end does not count: its writer died before the send. The next note may follow
    in the same line.
    """
    try:
        first, *notes = path.read_text().split("\n")[:-1] or [""]
        seal, _, claimed = first.partition(" ")
        if seal != _seal(descriptor):
            return None
        begun = {note[-_DIGITS:] for note in notes}
        unbegun = tuple(UUID(id_) for id_ in claimed.split() if id_ not in begun)
        died = not (notes and notes[-1].endswith(_LEFT))
        return LeftLog(UUID(path.name), unbegun, died)
    except (OSError, ValueError) as error:
        log.warning(
            "could not read the send log %s (%s): its messages wait until their claim ends",
            path, type(error).__name__,
        )  # fmt: skip
        return None


def _lock_of_the_dead(path: Path) -> int | None:
    """Lock a file that no living process has; None where one has it, or another user owns it."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except OSError:
        ...  # its process is alive, or another rescue reads it
    os.close(descriptor)
    return None


def _seal(descriptor: int) -> str:
    return f"{_boot_id()}:{os.fstat(descriptor).st_ino}"


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
