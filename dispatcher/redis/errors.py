"""The reasons of redis-py's errors as texts without keys, since keys contain recipients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from dispatcher.errors import Unavailable


class EvictingServer(redis.ResponseError):
    """The server evicts keys, reservations among them, when its memory is full."""


_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (redis.exceptions.OutOfMemoryError, "Redis is out of memory"),
    (redis.exceptions.BusyLoadingError, "Redis is loading its data"),
    (redis.exceptions.ReadOnlyError, "Redis is a read-only replica"),
    (redis.exceptions.AuthenticationError, "Redis refused the credentials"),
    (redis.exceptions.NoPermissionError, "Redis refused the credentials"),
    (redis.exceptions.TimeoutError, "Redis did not answer in time"),
    (redis.exceptions.ConnectionError, "Redis cannot be reached"),
    (redis.exceptions.RedisClusterException, "the cluster of Redis cannot be reached"),
)
# Old servers put a text before the error code of a command that failed in a script.
_CODE = re.compile(r"(?:^|: |-)([A-Z]{3,}) ")
# The address in redis-py's errors about connecting: host and port, or a socket.
_ADDRESS = re.compile(r"^Error\b.*?\bconnecting to (/\S+|[\w.:%-]+:\d+)\.(?:\s|$)")
_CODES = {"OOM": "Redis is out of memory", "READONLY": "Redis is a read-only replica"}


def reason(error: redis.RedisError | redis.exceptions.RedisClusterException) -> str:
    """Return the reason of an error."""
    if isinstance(error, EvictingServer):
        return str(error)
    for kind, text in _KINDS:
        if isinstance(error, kind):
            address = _ADDRESS.match(str(error))
            return text.replace("Redis", f"Redis at {address[1]}", 1) if address else text
    if "DB index is out of range" in str(error):
        return "Redis has no database of that number (redis_url)"
    found = _CODE.search(str(error))
    code = found[1] if found else "an error"
    return _CODES.get(code, f"Redis answered {code}")


def cause(error: Exception) -> Exception | None:
    """Return the error to chain to ours; None where redis-py may quote the command in it.

    For an error in a pipeline it quotes the command, and keys contain recipients.
    """
    return None if isinstance(error, redis.ResponseError) else error


def is_silence(error: Unavailable) -> bool:
    """Return whether an error of :func:`translated` says that Redis gave no answer at all."""
    return isinstance(error.__cause__, (redis.ConnectionError, redis.TimeoutError))


@contextmanager
def translated(unavailable: Callable[[str], Unavailable]) -> Iterator[None]:
    """Raise ``unavailable`` with the reason of an error of redis-py inside."""
    try:
        yield
    except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
        raise unavailable(reason(error)) from cause(error)
