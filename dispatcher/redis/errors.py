"""The reasons of redis-py's errors as texts without keys, since keys contain recipients."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from types import TracebackType

import redis
from redis.sentinel import MasterNotFoundError

from dispatcher.errors import Unavailable


class UnfitServer(redis.ResponseError):
    """The server cannot be used. The text of the error is the reason."""


class EvictingServer(UnfitServer):
    """The server evicts keys, reservations among them, when its memory is full."""


START_REDIS = "start Redis (`dispatcher up` runs one here), or correct redis_url"
_REACH_REDIS = "start it, let this machine reach it, or correct redis_url"
REPLICA = "Redis is a read-only replica"
"""The text of the error with which the fence refuses a connection."""
_NOT_COVERED = "the cluster of Redis does not serve all hash slots"
FOREIGN_KEY = (
    "find that program, then delete the key: `dispatcher doctor` names those of reservations, and "
    "`dispatcher windows rebuild` deletes them and fills the windows again"
)
"""What helps where a key of ours is of another type: another program wrote it."""
_FORBIDDEN = "run the command as the user of that Redis, or let this user reach its socket"

_MEANINGS: tuple[tuple[type[Exception], str, str, str], ...] = (
    (
        redis.exceptions.AuthenticationError,
        "",
        "Redis refused the credentials",
        "correct the user and the password in redis_url",
    ),
    (
        redis.exceptions.NoPermissionError,
        "",
        "the user of Redis lacks a right",
        "give the user in redis_url the rights that SECURITY.md lists",
    ),
    (
        redis.exceptions.ResponseError,
        "DB index is out of range",
        "Redis has no database of that number",
        "correct redis_url, or raise databases in redis.conf",
    ),
    (
        redis.exceptions.ConnectionError,
        r"^Error (?:-\d+|8) connecting to ",  # numbers of getaddrinfo; 8 is that of macOS
        "the host name of Redis is unknown",
        "correct it in redis_url, or let this machine resolve it",
    ),
    (
        redis.exceptions.RedisError,
        # A server without TLS lets its first bytes wait.
        r"\[SSL: |handshake operation timed out",
        "TLS with Redis fails",
        "correct redis_url (redis://… where the server has no TLS), or the server's certificate",
    ),
    (
        redis.exceptions.ResponseError,
        "WRONGTYPE",
        "another program wrote a key of ours in Redis (WRONGTYPE)",
        FOREIGN_KEY,
    ),
    (redis.exceptions.OutOfMemoryError, "", "Redis is out of memory", ""),
    (redis.exceptions.BusyLoadingError, "", "Redis is loading its data", ""),
    (redis.exceptions.ReadOnlyError, "", REPLICA, ""),
    (MasterNotFoundError, "", "the sentinels do not answer, or know no such master", ""),
    (redis.exceptions.TimeoutError, "", "Redis did not answer in time", ""),
    (redis.exceptions.ConnectionError, "", "Redis cannot be reached", ""),
    (redis.exceptions.SlotNotCoveredError, "", _NOT_COVERED, ""),
    (redis.exceptions.ClusterDownError, "", _NOT_COVERED, ""),
    (
        redis.exceptions.ClusterError,
        "",
        "a hash slot of the Redis cluster is moving to another node",
        "",
    ),
    (redis.exceptions.RedisClusterException, "", "the cluster of Redis cannot be reached", ""),
)
"""The kind of an error, a pattern in its text, meaning, and a remedy where a client is kept out."""
# Old servers put a text before the error code of a command that failed in a script.
_CODE = re.compile(r"(?:^|: |-)([A-Z]{3,}) ")
# The address in redis-py's errors about connecting: host and port, or a socket.
_ADDRESS = re.compile(r"^Error\b.*?\bconnecting to (/\S+|[\w.:%-]+:\d+)\.(?:\s|$)")
# The errors of redis-py's pools; older versions have no class for them.
_NO_CONNECTION = ("Too many connections", "No connection available.")
_POOL_IS_FULL = "the client has no free connection to Redis, because its pool is full"
_BY_TEXT = {REPLICA: REPLICA, **dict.fromkeys(_NO_CONNECTION, _POOL_IS_FULL)}
_CODES = {"OOM": "Redis is out of memory", "READONLY": REPLICA}


def reason(error: redis.RedisError | redis.exceptions.RedisClusterException) -> str:
    if isinstance(error, UnfitServer) or str(error) in _BY_TEXT:
        return _BY_TEXT.get(str(error), str(error))
    is_of_cluster = isinstance(error, redis.exceptions.RedisClusterException)
    if is_of_cluster and isinstance(error.__cause__, redis.RedisError):
        return reason(error.__cause__)
    if text := _meaning_and_remedy(error)[0]:
        address = _ADDRESS.match(str(error))
        return text.replace("Redis", f"Redis at {address[1]}", 1) if address else text
    if "unknown command" in str(error) and "SENTINEL" in str(error):
        return "the server of redis_url is no sentinel"
    match = _CODE.search(str(error))
    code = match[1] if match else "an error"
    return _CODES.get(code, f"Redis answered {code}")


def _meaning_and_remedy(error: Exception) -> tuple[str, str]:
    text = f"{error} {error.__context__}"
    for kind, pattern, meaning, helps in _MEANINGS:
        if isinstance(error, kind) and re.search(pattern, text):
            return meaning, helps
    return "", ""


def remedy(error: Exception) -> str:
    """Return what helps where a client is not let in, or no server is there; else ""."""
    if helps := _meaning_and_remedy(error)[1]:
        return helps
    address = _ADDRESS.match(str(error))
    if address is None:
        return ""
    if not address[1].startswith("/"):  # as that of the embedded Redis, of `dispatcher up`
        return _REACH_REDIS
    return _FORBIDDEN if str(error).startswith(f"Error {errno.EACCES} ") else START_REDIS


def cause(error: Exception) -> Exception | None:
    """Return the error to chain; None where it may quote the command: keys contain recipients."""
    return None if isinstance(error, redis.ResponseError) else error


def is_hash_slot_moving(error: Unavailable) -> bool:
    # ClusterDownError is a ClusterError too, but never a cause.
    return isinstance(error.__cause__, redis.exceptions.ClusterError)


def is_pool_full(error: Unavailable) -> bool:
    """Whether the client had no free connection: then Redis was not asked."""
    cause = error.__cause__
    return isinstance(cause, redis.ConnectionError) and str(cause) in _NO_CONNECTION


ERRORS = (redis.RedisError, redis.exceptions.RedisClusterException)
"""What redis-py raises."""


class translated:  # noqa: N801 - reads like a function
    """Raises ``unavailable`` for errors inside. A class is three times as quick as a generator."""

    __slots__ = ("_unavailable",)

    def __init__(self, unavailable: Callable[..., Unavailable]) -> None:
        self._unavailable = unavailable

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ERRORS):
            raise self._unavailable(reason(error), remedy=remedy(error)) from cause(error)
