"""Calls of scripts that go straight over a connection of the client's pool.

What redis-py does around a command costs as much as a script that takes a permit. So calls that
may be repeated go past it, and are repeated in its way where anything went wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

import redis
from redis.exceptions import NoScriptError
from redis.observability.providers import get_observability_instance

from dispatcher.limiters.asking import Asking, Words

log = logging.getLogger(__name__)

Client: TypeAlias = redis.Redis | redis.RedisCluster
_CONNECTIONS = {"redis.connection", "redis.sentinel"}
_STAND_IN = "\0"
"""Is nowhere in the names of keys but in the place of a caller's key."""
_LAST_WORDS = 4


class Direct:
    """Sends commands over connections of one client's pool. Safe to share between threads."""

    def __init__(self, client: Client) -> None:
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

    def call(self, command: bytes | Words) -> Any:
        """Send a command, packed or not, and return its reply; None: repeat it in redis-py's way.

        Raises what redis-py would raise as well. No reply is left behind on a connection,
        whatever happens.
        """
        pool = self._client.connection_pool
        connection = pool.get_connection()
        try:
            if isinstance(command, bytes):
                connection.send_packed_command((command,))
            else:
                connection.send_command(*command)
            return connection.read_response()
        except NoScriptError:
            return None
        except redis.ResponseError:
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            connection.disconnect()
            if connection.retry.get_retries() == 0:
                raise
            log.debug("asked again in the ordinary way: %s", type(error).__name__)
            return None
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)


class Acquisitions:
    """The commands of plain calls of ``acquire``, packed: few bytes differ from call to call."""

    def __init__(self, asking: Asking, sha: str) -> None:
        self._asking = asking
        self._sha = sha
        self._kept: tuple[Words, dict[int, tuple[bytes, bytes]]] = ((), {})

    def command(self, key: str, n: int, permit: str, *, new: bool) -> bytes:
        """Return the command that takes ``n`` permits for a key, which is ASCII as is ``permit``.

        Raises InvalidValue for a key that cannot be one.
        """
        words = self._asking.words(self._asking.server_ms())
        kept, starts = self._kept
        if kept is not words:
            starts = {}
            self._kept = (words, starts)
        length = len(key)
        if (parts := starts.get(length)) is None:
            parts = starts[length] = self._parts(length, words)
        start, rest = parts
        return b"%b%b%b%b" % (
            start.replace(_STAND_IN.encode() * length, key.encode()),
            rest,
            _packed(permit),
            (_ONE_NEW if new else _ONE_AGAIN) if n == 1 else _packed(int(new), n, n),
        )

    def _parts(self, length: int, words: Words) -> tuple[bytes, bytes]:
        names = self._asking.addresses.whole(_STAND_IN * length)
        start: Words = ("EVALSHA", self._sha, len(names), *names)
        rest: Words = (self._asking.span, *words)
        many = len(start) + len(rest) + _LAST_WORDS
        return b"*%d\r\n%b" % (many, _packed(*start)), _packed(*rest)


def _packed(*words: str | int | bytes) -> bytes:
    encoded = [each if isinstance(each, bytes) else str(each).encode() for each in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded])


_ONE_NEW = _packed(1, 1, 1)
_ONE_AGAIN = _packed(0, 1, 1)


def _is_plain(client: Client) -> bool:
    if not isinstance(client, redis.Redis) or client.connection is not None:
        return False
    connections = getattr(client.connection_pool, "connection_class", None)
    return (
        getattr(connections, "__module__", None) in _CONNECTIONS
        and _is_redis_pys(client.evalsha)
        and _is_redis_pys(client.parse_response)
        and client.get_cache() is None
    )


def _is_redis_pys(method: Callable[..., object]) -> bool:
    """Whether a method is redis-py's own, and nothing that was put in its place."""
    function = getattr(method, "__func__", None)
    return type(function) is FunctionType and function.__globals__["__name__"] in _HOMES


_HOMES = {"redis.client", "redis.commands.core"}
