"""Calls Redis and turns what it says when it cannot help into the dispatcher's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from dispatcher.errors import ReservationsUnavailable

_REASONS: tuple[tuple[type[redis.RedisError], str], ...] = (
    (redis.exceptions.OutOfMemoryError, "Redis is out of memory"),
    (redis.exceptions.BusyLoadingError, "Redis is loading its data"),
    (redis.exceptions.ReadOnlyError, "Redis is a read-only replica"),
    (redis.exceptions.AuthenticationError, "Redis refused the credentials"),
    (redis.exceptions.NoPermissionError, "Redis refused the credentials"),
    (redis.exceptions.TimeoutError, "Redis did not answer in time"),
    (redis.exceptions.ConnectionError, "Redis cannot be reached"),
)


_CODE = re.compile(r"(?:^|: |-)([A-Z]{3,}) ")
_CODES = {"OOM": "Redis is out of memory", "READONLY": "Redis is a read-only replica"}


class EvictingServer(redis.ResponseError):
    """The server forgets keys when it is full, reservations among them."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise ReservationsUnavailable for whatever redis-py raises inside."""
    try:
        yield
    except redis.RedisError as error:
        raise ReservationsUnavailable(_reason(error)) from error


def _reason(error: redis.RedisError) -> str:
    if isinstance(error, EvictingServer):
        return str(error)
    for kind, text in _REASONS:
        if isinstance(error, kind):
            return text
    # Only the error's code: the rest may name keys, and keys name recipients. Old servers put the
    # code of a command in a script behind words of their own.
    found = _CODE.search(str(error))
    code = found[1] if found else "an error"
    return _CODES.get(code, f"Redis answered {code}")
