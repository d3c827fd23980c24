"""Calls Redis and turns what it says when it cannot help into the dispatcher's errors."""

from __future__ import annotations

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
    # Only the first word, the error's code: the rest may name keys, and keys name recipients.
    code = str(error).split(" ", 1)[0]
    return "Redis is out of memory" if code == "OOM" else f"Redis answered {code}"
