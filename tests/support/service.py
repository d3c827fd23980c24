"""Child processes that an acceptance test or a soak runs, kills and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.processes import command_line

_LOOK_EVERY_SECONDS = 0.1
_RESTART_SECONDS = 0.5


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


class Supervised:
    """Services, of which those that are to run are started again when they end, until ``close``."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = services
        self.restarts = 0
        self._wanted: set[str] = set()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def up(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._wanted.add(name)
                if not self.services[name].alive:
                    self.services[name].start()

    def kill(self, *names: str) -> None:
        """``kill -9``; those that are to run are started again."""
        with self._lock:
            for name in names:
                self.services[name].kill()

    def leave(self, *names: str) -> None:
        with self._lock:
            self._wanted.difference_update(names)

    def signal(self, name: str, number: signal.Signals) -> int | None:
        """Send a signal to a service and all its children; return its process id."""
        with self._lock:
            service = self.services[name]
            if not service.alive:
                return None
            with suppress(ProcessLookupError):
                os.killpg(service.pid, number)
            return service.pid

    def close(self) -> None:
        self._leaving.set()
        self._supervisor.join()
        for service in self.services.values():
            service.kill()

    def _supervise(self) -> None:
        started: dict[str, float] = {}
        while not self._leaving.wait(_LOOK_EVERY_SECONDS):
            with self._lock:
                for name in self._wanted:
                    service, last = self.services[name], started.get(name, 0.0)
                    if not service.alive and time.monotonic() - last > _RESTART_SECONDS:
                        service.start()
                        started[name] = time.monotonic()
                        self.restarts += 1
