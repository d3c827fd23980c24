"""What all limiters share: the decision, and what redis-py's errors mean here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import redis

from dispatcher.errors import LimitersUnavailable
from dispatcher.redis_errors import reason


@dataclass(frozen=True, slots=True)
class Decision:
    """A limiter's answer.

    ``remaining`` is how many more permits the tightest limit would give now; ``retry_after`` is
    how long to wait before asking again, zero when allowed.
    """

    allowed: bool
    remaining: int
    retry_after: timedelta


@contextmanager
def translated() -> Iterator[None]:
    """Raise LimitersUnavailable for whatever redis-py raises inside."""
    try:
        yield
    except redis.RedisError as error:
        raise LimitersUnavailable(reason(error)) from error
