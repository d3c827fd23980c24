"""Calls of scripts that go straight over a connection of the client's pool.

What redis-py does around a command costs as much as a short script. So calls go past it, and are
repeated as often as it would repeat them, on the same connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import redis
import redis.asyncio
from redis.exceptions import NoScriptError
from redis.observability.providers import get_observability_instance

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster
_CONNECTIONS = {
    "redis.connection",
    "redis.sentinel",
    "redis.asyncio.connection",
    "redis.asyncio.sentinel",
}
_HOMES = {"redis.client", "redis.asyncio.client", "redis.commands.core"}


class _Way:
    """The way over connections of one client's pool, where it may be taken."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self._client: Any = client
        self._possible = _is_plain(client)
        self._observed = get_observability_instance()

    @property
    def open(self) -> bool:
        """Whether commands may go past the client's ``execute_command``.

        Not on a cluster, nor with a connection or a cache of the client's own, nor where somebody
        stands in between, to trace, to measure or to test.
        """
        return (
            self._possible
            and _is_redis_pys(self._client.execute_command)
            and not self._observed.is_enabled()
        )

    def _packed(
        self, script: Any, names: Sequence[str], words: Sequence[str | int | bytes]
    ) -> bytes:
        many = 3 + len(names) + len(words)
        return b"*%d\r\n%b%b" % (
            many,
            packed("EVALSHA", script.sha, len(names), *names),
            packed(*words),
        )


class Direct(_Way):
    """Sends commands over connections of one client's pool. Safe to share between threads."""

    def run(self, script: Any, names: Sequence[str], words: Sequence[str | int | bytes]) -> Any:
        """Run a script of redis-py's, past redis-py where that may be."""
        if self.open:
            reply = self.call(self._packed(script, names, words))
            if reply is not None:
                return reply
        return script(keys=names, args=words)

    def call(self, command: bytes, again: Callable[[], bytes] | None = None) -> Any:
        """Send a packed command and return its reply; None: the script is not known.

        Where its reply may be lost it is repeated, as ``again`` tells. Raises what redis-py would
        raise as well. No reply is left behind on a connection, whatever happens.
        """
        pool = self._client.connection_pool
        connection = pool.get_connection()
        try:
            return self._reply(connection, command)
        except NoScriptError:
            return None
        except Exception as error:  # noqa: BLE001 - the client's retry says which it is for
            return self._repeated(connection, error, again or (lambda: command))
        finally:
            pool.release(connection)

    def _repeated(self, connection: Any, error: Exception, again: Callable[[], bytes]) -> Any:
        failed = [error]

        def repeat() -> Any:
            if failed:
                raise failed.pop()
            try:
                return self._reply(connection, again())
            except NoScriptError:
                return None

        return connection.retry.call_with_retry(repeat, lambda _: connection.disconnect())

    @staticmethod
    def _reply(connection: Any, command: bytes) -> Any:
        try:
            connection.send_packed_command((command,))
            return connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            connection.disconnect()
            raise


class AsyncDirect(_Way):
    """:class:`Direct` for clients of ``redis.asyncio``."""

    async def run(
        self, script: Any, names: Sequence[str], words: Sequence[str | int | bytes]
    ) -> Any:
        """Run a script. See :meth:`Direct.run`."""
        if self.open:
            reply = await self.call(self._packed(script, names, words))
            if reply is not None:
                return reply
        return await script(keys=names, args=words)

    async def call(self, command: bytes, again: Callable[[], bytes] | None = None) -> Any:
        """Send a packed command and return its reply. See :meth:`Direct.call`."""
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        try:
            return await self._reply(connection, command)
        except NoScriptError:
            return None
        except Exception as error:  # noqa: BLE001 - the client's retry says which it is for
            return await self._repeated(connection, error, again or (lambda: command))
        finally:
            await pool.release(connection)

    async def _repeated(self, connection: Any, error: Exception, again: Callable[[], bytes]) -> Any:
        failed = [error]

        async def repeat() -> Any:
            if failed:
                raise failed.pop()
            try:
                return await self._reply(connection, again())
            except NoScriptError:
                return None

        return await connection.retry.call_with_retry(repeat, lambda _: connection.disconnect())

    @staticmethod
    async def _reply(connection: Any, command: bytes) -> Any:
        # Both disconnect when they are interrupted.
        await connection.send_packed_command((command,))
        return await connection.read_response()


def packed(*words: str | int | bytes) -> bytes:
    """Return words of a command as they are sent, but for the line that tells how many they are."""
    encoded = [each if isinstance(each, bytes) else str(each).encode() for each in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded])


def _is_plain(client: Client | AsyncClient) -> bool:
    if isinstance(client, redis.Redis):
        its_own = client.connection is not None or client.get_cache() is not None
    elif isinstance(client, redis.asyncio.Redis):
        its_own = client.single_connection_client
    else:
        return False
    connections = getattr(client.connection_pool, "connection_class", None)
    return (
        not its_own
        and getattr(connections, "__module__", None) in _CONNECTIONS
        and _is_redis_pys(client.evalsha)
        and _is_redis_pys(client.parse_response)
    )


def _is_redis_pys(method: Callable[..., object]) -> bool:
    """Whether a method is redis-py's own, and nothing that was put in its place.

    What instruments it may look like it in all but its type.
    """
    if type(method) is not MethodType:
        return False
    function = method.__func__
    return type(function) is FunctionType and function.__globals__["__name__"] in _HOMES
