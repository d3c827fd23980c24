"""Calls for permits of one key, sent over a connection of the client's pool, past redis-py.

What redis-py does around a command costs the caller more than the script costs Redis. Decision 0013
has the figures. Groups, and all else that is asked, go redis-py's way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
_REQUEST_WORDS = 3


class PooledCalls:
    """The connections of one client's pool, and whether calls may use them directly.

    Commands are packed here: few bytes differ from call to call.
    """

    def __init__(self, client: Client | AsyncClient, limit_set: LimitSet, sha: str) -> None:
        self._client: Any = client
        self._limit_set = limit_set
        self._sha = sha
        self._start = cache(self._packed_start)
        self._packed_words: tuple[Words, bytes] = ((), b"")
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

    def command(self, key: str, request: Words) -> bytes:
        """Return the command for a request with one key, in ASCII. Raises InvalidValue."""
        words, kept = self._limit_set.words(self._limit_set.server_ms()), self._packed_words
        if kept[0] is not words:
            kept = self._packed_words = (words, _packed(self._limit_set.span, *words))
        length = len(key)
        start = self._start(length).replace(_STAND_IN.encode() * length, key.encode())
        return b"%b%b%b" % (start, kept[1], _packed(*request))

    def _packed_start(self, length: int) -> bytes:
        """Return what comes before the words of the limits, for a key of that length."""
        names = self._limit_set.key_names(_STAND_IN * length)
        start: Words = ("EVALSHA", self._sha, len(names), *names)
        words = self._limit_set.words(self._limit_set.server_ms())
        number = len(start) + 1 + len(words) + _REQUEST_WORDS
        return b"*%d\r\n%b" % (number, _packed(*start))


class DirectCalls(PooledCalls):
    """Sends calls over connections of one client's pool. Safe to share between threads."""

    def call(self, key: str, request: Words) -> Any:
        """Ask for permits of a key and return the reply; empty where the script is not known.

        It is repeated after the same faults and as often as redis-py would. No reply stays unread
        on a connection. Raises the errors of redis-py.
        """
        command = self.command(key, request)
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

        try:
            return connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
        finally:
            pool.release(connection)


class AsyncDirectCalls(PooledCalls):
    """:class:`DirectCalls` for clients of ``redis.asyncio``."""

    async def call(self, key: str, request: Words) -> Any:
        command = self.command(key, request)
        pool = self._client.connection_pool
        connection = await pool.get_connection()

        async def ask() -> Any:
            try:  # both disconnect when they are interrupted
                await connection.send_packed_command((command,))
                return await connection.read_response()
            except NoScriptError:
                return ()

        try:
            return await connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
        finally:
            await pool.release(connection)


def _packed(*words: str | int | bytes) -> bytes:
    """Return words of a command as they are sent, but for the line with their number."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])


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


def _is_in_redis_py(part: object) -> bool:
    return str(getattr(part, "__module__", None)).partition(".")[0] == "redis"
