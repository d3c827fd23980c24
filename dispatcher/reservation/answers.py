"""Calls Redis and turns what it says when it cannot help into the dispatcher's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from dispatcher.errors import ReservationsUnavailable


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
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM" in str(error):
        return "Redis is out of memory"
    if isinstance(error, redis.BusyLoadingError):
        return "Redis is loading its data"
    if isinstance(error, redis.ReadOnlyError):
        return "Redis is a read-only replica"
    if isinstance(error, redis.TimeoutError):
        return "Redis did not answer in time"
    if isinstance(error, redis.AuthenticationError | redis.NoPermissionError):
        return "Redis refused the credentials"
    if isinstance(error, redis.ConnectionError):
        return "Redis cannot be reached"
    return f"Redis answered {str(error).split(' ', 1)[0]}"
