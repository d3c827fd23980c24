"""Send logs: the files in which a worker notes its claims, and each send right before it begins.

A process that dies leaves its files. A message of a claim without a note of its send was never
given to a transport: it goes back, instead of counting as tried with an unknown outcome.

A file is a proof only while these hold, and otherwise the outcome counts as unknown:

- Its process is dead. The process holds a lock on its folder as long as any of its threads lives;
  the system releases it.
- The machine was not started again since: what was written without a sync lies in its memory. The
  boot id tells.
- The folder is no copy: no process holds the lock of a copy. The number of the lock's inode tells.
- Every note could be written. A file that cannot take the next note is deleted before the send.
  Where that fails too, nothing is sent.

The files lie in ``data_dir``. Any worker of the machine that has the same ``data_dir`` reads what
a dead one left.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from dispatcher.file_modes import make_private

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCK = "lock"
_LEFT_BY_LIVING = ".left"
"""The suffix of a log that a living process has left to rescue."""
_MOST_OF_A_SEAL = 100
_HEX_DIGITS = 32
"""Of a message's id."""
# os.write releases the interpreter's lock; with 16 senders, taking it back costs 20 µs of processor
# time a note. This call keeps the lock: 2 µs on a local disk. Where the disk is slow, all threads
# of the process wait for it. Windows, where programs may submit, has no such library and no send
# logs.
if os.name == "posix":
    _write_at_once = ctypes.PyDLL(None, use_errno=True).write
    _write_at_once.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    _write_at_once.restype = ctypes.c_ssize_t


LogFile = tuple[Path, int]
"""A file, and its descriptor."""


class ClaimLog:
    """The file of one claim. ``mark`` is that of the claim in the store, and the file's name.

    The task opens it, and each group of the claim shares it until its sends have ended. The last
    one to close it deletes the file.
    """

    def __init__(self, logs: SendLogs, mark: UUID, file: LogFile | None) -> None:
        self.mark = mark
        self._logs = logs
        self._file = file
        self._lock = threading.Lock()
        self._users = 1
        self._is_kept = False

    def begin(self, message_id: UUID) -> bool:
        file = self._file
        if not self._users:
            return False
        # Without a note the file must go: then it proves nothing, and the send may begin.
        return file is None or _append(file, message_id.hex) or _delete(file[0])

    def share(self) -> None:
        """Keep the file open until one more call of :meth:`close`."""
        with self._lock:
            self._users += 1

    def keep(self) -> None:
        """Let the last :meth:`close` leave the file to the next rescue instead of deleting it.

        For a claim that the store may still have: the rescue puts back its messages that were not
        begun.
        """
        self._is_kept = True

    def close(self) -> None:
        """Close it once. After the last time no send begins, and the file is deleted or left."""
        with self._lock:
            self._users -= 1
            if self._users or self._file is None:
                return
            file, self._file = self._file, None
        if self._is_kept:
            self._logs.leave(file)
        else:
            _discard(file)


@dataclass(frozen=True, slots=True)
class LeftLog:
    """The send log of a claim, left by a process that ``died``, or that lives and gave it up.

    ``unbegun`` are the messages of the claim that were not given to a transport.
    """

    mark: UUID
    unbegun: tuple[UUID, ...]
    died: bool = True


class SendLogs:
    """The send logs of this process, and those that other processes of this machine have left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._has_warned = False
        self._own: LogFile | None = None

    def open(self, message_ids: Sequence[UUID]) -> ClaimLog:
        """Return the log of a claim that is about to be made of these messages.

        Where no file can be written the log notes nothing. A folder that cannot be made is tried
        again for the next claim; a warning is logged once. A folder that was deleted is made again.
        """
        mark = uuid4()
        with self._lock:
            if self._own is not None and not os.fstat(self._own[1]).st_nlink:  # the lock's
                os.close(self._own[1])
                self._own = None
            if self._own is None:
                self._own = self._make_folder()
            file = self._own and _make_file(self._own[0] / mark.hex)
        if file and not _append(file, " ".join([message_id.hex for message_id in message_ids])):
            _discard(file)  # where it stays, its line has no end: it proves nothing
            file = None
        return ClaimLog(self, mark, file)

    def leave(self, file: LogFile) -> None:
        """Let the next rescue read a file of this process, which writes no more to it."""
        path, descriptor = file
        os.close(descriptor)
        try:
            folder, lock = _locked_folder(self._folder)
            try:
                path.rename(folder / f"{path.name}{_LEFT_BY_LIVING}")
            except OSError:
                _remove_empty(folder)
                raise
            finally:
                os.close(lock)
        except OSError as error:
            log.warning(
                "could not leave the send log %s to rescue (%s): its unsent messages wait until "
                "their claim ends", path, error.strerror,
            )  # fmt: skip

    def consume(self, act: Callable[[LeftLog], object], *, limit: int) -> bool:
        """Call ``act`` with each log that is left, and delete the log when ``act`` has returned.

        Stop when ``limit`` are deleted; return False where more are left. What ``act`` raises is
        raised; the next call begins with that log again.
        """
        try:
            folders = sorted(self._folder.iterdir())
        except OSError:
            return True
        for folder in folders:
            lock = _lock_of_the_dead(folder)
            if lock is None:
                continue
            try:
                for path in _files(folder):
                    if not limit:
                        return False
                    left = _read(path)
                    if left is not None and left.unbegun:
                        act(left)
                    if _delete(path):  # a file that stays must not use up every turn
                        limit -= 1
                _remove_empty(folder)
            finally:
                os.close(lock)
        return True

    def close(self) -> None:
        """Delete the folder of this process. May be called twice.

        It stays while a send is under way: its lock says that the process is alive.
        """
        with self._lock:
            if self._own is not None and not _files(self._own[0]):
                folder, lock = self._own
                self._own = None
                _remove_empty(folder)
                os.close(lock)

    def _make_folder(self) -> LogFile | None:
        try:
            return _locked_folder(self._folder)
        except OSError as error:
            if self._has_warned:
                return None
            self._has_warned = True
            log.warning(
                "no send logs in %s (%s): if this worker is killed, every message that it has "
                "claimed has an unknown outcome; set data_dir to a folder that it can write to",
                self._folder, error.strerror,
            )  # fmt: skip
            return None


def _make_file(path: Path) -> LogFile | None:
    try:
        return path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        log.warning(
            "could not make the send log %s (%s): if the worker is killed, all messages of the "
            "claim have an unknown outcome", path, error.strerror,
        )  # fmt: skip
        return None


def _discard(file: LogFile) -> None:
    path, descriptor = file
    os.close(descriptor)
    _delete(path)


def _append(file: LogFile, line: str) -> bool:
    path, descriptor = file
    data = line.encode() + b"\n"
    try:
        if _write(descriptor, data) == len(data):
            return True
        problem: str | None = "only a part was written"
    except OSError as error:
        problem = error.strerror
    log.warning(
        "could not write to the send log %s: %s; without it all messages of the claim have an "
        "unknown outcome if the worker is killed", path, problem,
    )  # fmt: skip
    return False


def _write(descriptor: int, data: bytes) -> int:
    written: int = _write_at_once(descriptor, data, len(data))
    if written < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return written


def _delete(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("could not delete the send log %s: %s", path, error.strerror)
        return False
    return True


def _read(path: Path) -> LeftLog | None:
    """Read a file; None where it is not one of ours.

    A line without an end does not count: its writer died before the send. The next note may stand
    behind it, in the same line.
    """
    try:
        claimed, *notes = path.read_text().split("\n")[:-1] or [""]
        begun = {each[-_HEX_DIGITS:] for each in notes}
        unbegun = [each for each in claimed.split() if each not in begun]
        died = path.suffix != _LEFT_BY_LIVING
        return LeftLog(UUID(path.stem), tuple(map(UUID, unbegun)), died)
    except (OSError, ValueError) as error:
        log.warning(
            "could not read the send log %s (%s): its messages wait until their claim ends",
            path, type(error).__name__,
        )  # fmt: skip
        return None


def _locked_folder(parent: Path) -> LogFile:
    """Make a folder that is locked until the lock is closed. Raises OSError."""
    boot_id = _BOOT_ID.read_bytes()
    import fcntl  # noqa: PLC0415 - Windows, where programs may submit, has none

    folder = parent / uuid4().hex
    make_private(folder)
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Last: a folder without its seal is not taken over from a dead process.
            os.write(lock, _seal(boot_id, lock))
        except BaseException:
            os.close(lock)
            raise
    except BaseException:
        _remove_empty(folder)
        raise
    return folder, lock


def _lock_of_the_dead(folder: Path) -> int | None:
    """Return the lock of a folder whose files are a proof; None of any other."""
    import fcntl  # noqa: PLC0415 - see _locked_folder

    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:  # another one has consumed it, or another user owns it
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seal = os.read(lock, _MOST_OF_A_SEAL)
        if seal == _seal(_BOOT_ID.read_bytes(), lock):
            return lock
        if seal:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        ...  # another process holds the lock, so it is alive
    os.close(lock)
    return None


def _seal(boot_id: bytes, lock: int) -> bytes:
    """Return what is written into a lock: which boot it is of, and which file it is."""
    return boot_id + str(os.fstat(lock).st_ino).encode()


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.name != _LOCK)
    except OSError:
        return []


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()
