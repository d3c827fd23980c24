"""The time of a dispatcher in tests, which Python, SQL and Redis have in common.

What the program sends to its servers stays what it is. On its way, the words by which a statement
or a script asks for the present are replaced by the present of the test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import redis
import redis.asyncio
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.engine import URL

from dispatcher.store.engines.types import with_present
from dispatcher.times.clock import SystemClock

Now = Callable[[], datetime]
_SECOND = timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = count()
_UNKNOWN = "0" * 40
"""A digest that no script has, so that the server asks for the script's text."""


class TravelClock:
    """A clock that stands still until it is moved. To sleep moves it.

    It begins at ``start``, by default the present.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._start = self._now = start or SystemClock().now()

    def now(self) -> datetime:
        """Return the present instant, aware UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return (self._now - self._start).total_seconds()

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._now += timedelta(seconds=max(0.0, seconds))

    def move_to(self, instant: datetime) -> None:
        """Let time pass until an instant."""
        self._now = max(self._now, instant)


@contextmanager
def sql_time(url: str, now: Now) -> Iterator[None]:
    """Let every engine of this process tell the database at ``url`` that it is ``now``."""
    database = _place(make_url(url))
    function = f"travel_now_{next(_NUMBERS)}"

    @cache
    def is_told(engine: Engine) -> bool:
        return _place(engine.url) == database

    def to_present(
        connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object
    ) -> tuple[str, Any]:
        if is_told(connection.engine):
            statement = with_present(connection, statement, now, function)
        return statement, parameters

    event.listen(Engine, "before_cursor_execute", to_present, retval=True)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", to_present)


def _place(url: URL) -> tuple[object, ...]:
    """Return where a URL leads, whatever the driver; a database may be a file."""
    return url.host, url.port, Path(url.database or "").resolve()


class RedisTime:
    """Lets the scripts of clients of the Redis at a socket find that it is ``now``."""

    _texts: ClassVar[dict[str, str]] = {}
    """The scripts of this process, by their digests."""

    def __init__(self, socket: Path, now: Now) -> None:
        self._socket = str(socket)
        self._present = now

    def told_by(self, client: redis.Redis) -> redis.Redis:
        """Return a client that has no connections yet, from now on by this time."""
        pool = client.connection_pool
        pool.connection_class = type("_Told", (_Connection, pool.connection_class), {})
        pool.connection_kwargs["time"] = self
        vars(client)["time"] = self.now
        return client

    def client(self) -> redis.Redis:
        return self.told_by(redis.Redis(unix_socket_path=self._socket))

    def awaited_client(self) -> redis.asyncio.Redis:
        pool = redis.asyncio.ConnectionPool(
            connection_class=_AwaitedConnection, path=self._socket, time=self
        )
        return redis.asyncio.Redis.from_pool(pool)

    def now(self) -> tuple[int, int]:
        passed = self._present() - _EPOCH
        return passed // _SECOND, (passed % _SECOND) // timedelta(microseconds=1)

    def translated(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a command whose script asks for this time; others as they are."""
        name, *rest = words
        match [*str(name).split(), *rest]:
            case ["SCRIPT", "LOAD", text]:
                script = _text(text)
                digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
                self._texts[digest] = script
            case ["EVAL", text, *others]:
                return "EVAL", _prelude() + _text(text), *others, self._word()
            case ["EVALSHA", sha, *others]:
                if _text(sha) not in self._texts:
                    return "EVALSHA", _UNKNOWN, *others  # another client may have loaded it
                return "EVAL", _prelude() + self._texts[_text(sha)], *others, self._word()
        return words

    def _word(self) -> str:
        """Return the present as a script reads it behind its own arguments."""
        seconds, micros = self.now()
        return f"{seconds} {micros}"


class _Packer(NamedTuple):
    time: RedisTime
    packer: Any

    def pack(self, *words: Any) -> Any:
        return self.packer.pack(*self.time.translated(words))


class _Connection(redis.connection.AbstractConnection):
    def __init__(self, *, time: RedisTime, **options: Any) -> None:
        super().__init__(**options)
        self._command_packer = _Packer(time, self._command_packer)


class _AwaitedConnection(redis.asyncio.UnixDomainSocketConnection):
    def __init__(self, *, time: RedisTime, **options: Any) -> None:
        super().__init__(**options)
        self._time = time

    def pack_command(self, *words: Any) -> Any:
        return super().pack_command(*self._time.translated(words))


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode()


@cache
def _prelude() -> str:
    file = files(__package__) / "lua" / "travel.lua"
    return file.read_text(encoding="utf-8")
