"""One child process that an acceptance test runs, kills and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.processes import command_line


class Service:
    """One child process, a process group of its own, with a log."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]):
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._folder = folder
        self._env = env
        self._child: subprocess.Popen[bytes] | BaseProcess | None = None
        self._killed = 0

    @property
    def pid(self) -> int:
        pid = self._child and self._child.pid
        if not pid:
            raise RuntimeError(f"{self.name} was never started")
        return pid

    @property
    def alive(self) -> bool:
        return isinstance(self._child, subprocess.Popen) and self._child.poll() is None

    def start(self) -> None:
        self._killed = 0
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._env,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it and its children without any order."""
        if self._child is not None and self._killed != self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._child.kill()  # it may have begun only just, and lead no group yet
            self._wait()
            self._killed = self.pid  # it is gone, and the number may be another's by now

    def _wait(self) -> None:
        if isinstance(self._child, subprocess.Popen):
            self._child.wait()


class Forked(Service):
    """``python -m dispatcher``, told its arguments, without the second that its imports take."""

    @property
    def alive(self) -> bool:
        return isinstance(self._child, BaseProcess) and self._child.is_alive()

    def start(self) -> None:
        self._killed = 0
        self._child = command_line(self._command, self.log, self._folder, self._env)

    def _wait(self) -> None:
        if isinstance(self._child, BaseProcess):
            self._child.join()
