"""One child process that an acceptance test runs, kills and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Service:
    """One child process, a process group of its own, with a log."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]):
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._folder = folder
        self._env = env
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
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
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
