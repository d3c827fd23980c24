"""Turns what Redis says when it cannot help into the dispatcher's error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.errors import cause, reason


@contextmanager
def translated() -> Iterator[None]:
    """Raise ReservationsUnavailable for whatever redis-py raises inside."""
    try:
        yield
    except redis.RedisError as error:
        raise ReservationsUnavailable(reason(error)) from cause(error)
