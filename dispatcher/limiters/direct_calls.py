"""Plain calls of ``acquire``, sent over a connection of the client's pool, past redis-py.

What redis-py does around a command costs the caller more than the script costs Redis. Decision 0013
has the figures. Only this call goes this way: everything else is a script of redis-py's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from dispatcher.limiters.limit_set import LimitSet, Words

try:
    from redis.observability import get_observability_instance as observability
except ImportError:  # redis-py before 7.2, to whose connections this way is not fitted
    observability = None  # type: ignore[assignment]  # the stubs are those of the newest

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster
_STAND_IN = "\0"
"""Stands for a caller's key in the names of keys; it occurs in no other part of them."""
_LAST_WORDS = 4


class _PooledCalls:
    """The connections of one client's pool, and whether plain calls may use them.

    Commands are packed: few bytes differ from call to call.
    """

    def __init__(self, client: Client | AsyncClient, limit_set: LimitSet, sha: str) -> None:
        self._client: Any = client
        self._limit_set = limit_set
        self._sha = sha
        self._starts: tuple[Words, dict[int, tuple[bytes, bytes]]] = ((), {})
        self._metrics = None if observability is None else observability()
        self._possible = self._metrics is not None and _is_plain(client)

    @property
    def open(self) -> bool:
        """Whether commands may go past the client's ``execute_command``.

        Not for a cluster, a subclass, or a client with a connection or a cache of its own, nor
        where something traces, measures or replaces its commands.
        """
        return (
            self._possible
            and _is_redis_pys(self._client.execute_command)
            and not self._metrics.is_enabled()
        )

    def command(self, key: str, n: int, permit: str, is_new: bool) -> bytes:
        """Return the command; ``key`` and ``permit`` are ASCII. Raises InvalidValue."""
        words = self._limit_set.words(self._limit_set.server_ms())
        words_then, starts = self._starts
        if words_then is not words:
            starts = {}
            self._starts = (words, starts)
        length = len(key)
        if (parts := starts.get(length)) is None:
            parts = starts[length] = self._parts(length, words)
        start, rest = parts
        return b"%b%b%b%b" % (
            start.replace(_STAND_IN.encode() * length, key.encode()),
            rest,
            _packed(permit),
            (_ONE_NEW if is_new else _ONE_AGAIN) if n == 1 else _packed(int(is_new), n, n),
        )

    def _parts(self, length: int, words: Words) -> tuple[bytes, bytes]:
        names = self._limit_set.key_names(_STAND_IN * length)
        start: Words = ("EVALSHA", self._sha, len(names), *names)
        rest: Words = (self._limit_set.span, *words)
        many = len(start) + len(rest) + _LAST_WORDS
        return b"*%d\r\n%b" % (many, _packed(*start)), _packed(*rest)


class DirectCalls(_PooledCalls):
    """Sends plain calls over connections of one client's pool. Safe to share between threads."""

    def call(self, key: str, n: int, permit: str, is_new: bool) -> Any:
        """Make a plain call and return its reply; empty where the script is not known.

        ``is_new``: the id was made for this call, so that no earlier call can have used it.

        It is repeated after the same faults and as often as redis-py would. It may have taken its
        permits, so its id is not new any more. No reply stays unread on a connection. Raises the
        errors of redis-py.
        """
        command = self.command(key, n, permit, is_new)
        pool = self._client.connection_pool
        connection = pool.get_connection()

        def ask() -> Any:
            try:
                connection.send_packed_command((command,))
                return connection.read_response()
            except NoScriptError:
                return ()
            except redis.ResponseError:
                raise
            except BaseException:
                connection.disconnect()
                raise

        def failed(_: Exception) -> None:
            nonlocal command
            command = self.command(key, n, permit, is_new=False)
            connection.disconnect()

        try:
            return connection.retry.call_with_retry(ask, failed)
        finally:
            pool.release(connection)


class AsyncDirectCalls(_PooledCalls):
    """:class:`DirectCalls` for clients of ``redis.asyncio``."""

    async def call(self, key: str, n: int, permit: str, is_new: bool) -> Any:
        command = self.command(key, n, permit, is_new)
        pool = self._client.connection_pool
        connection = await pool.get_connection()

        async def ask() -> Any:
            try:  # both disconnect when they are interrupted
                await connection.send_packed_command((command,))
                return await connection.read_response()
            except NoScriptError:
                return ()

        async def failed(_: Exception) -> None:
            nonlocal command
            command = self.command(key, n, permit, is_new=False)
            await connection.disconnect()

        try:
            return await connection.retry.call_with_retry(ask, failed)
        finally:
            await pool.release(connection)


def _packed(*words: str | int | bytes) -> bytes:
    """Return words of a command as they are sent, but for the line with their number."""
    encoded = [each if isinstance(each, bytes) else str(each).encode() for each in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded])


_ONE_NEW = _packed(1, 1, 1)
_ONE_AGAIN = _packed(0, 1, 1)


def _is_plain(client: Client | AsyncClient) -> bool:
    if type(client) is redis.Redis:
        has_own = client.connection is not None or client.get_cache() is not None
    elif type(client) is redis.asyncio.Redis:
        has_own = client.single_connection_client
    else:
        return False
    connections = getattr(client.connection_pool, "connection_class", None)
    return (
        not has_own
        and _is_in_redis_py(connections)
        and _is_redis_pys(client.evalsha)
        and _is_redis_pys(client.parse_response)
    )


def _is_redis_pys(method: Callable[..., object]) -> bool:
    """Whether a method is redis-py's own, and not a replacement.

    A tracer may put an object there that resembles the method in all but its type, or wrap it.
    """
    if type(method) is not MethodType:
        return False
    function = method.__func__
    is_bare = type(function) is FunctionType and not hasattr(function, "__wrapped__")
    return is_bare and _is_in_redis_py(function)


def _is_in_redis_py(found: object) -> bool:
    return str(getattr(found, "__module__", None)).partition(".")[0] == "redis"
