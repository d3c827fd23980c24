"""What all limiters share: the decision, what a limit must say, and what redis-py's errors mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

import redis
from redis.exceptions import RedisClusterException

from dispatcher.errors import InvalidValue, LimitersUnavailable
from dispatcher.redis_errors import cause, reason

MOST_AT_ONCE = 10_000
"""More permits are not given in one call, so that no script runs long."""


class State(StrEnum):
    """How a limiter answered."""

    ALLOWED = "allowed"
    REACHED = "reached"
    """Allowed, and nothing more is left: a batch may pause here."""
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """Redis could not be asked. Not allowed; the caller may decide otherwise."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A limiter's answer. True in a condition exactly when ``allowed``.

    Of several limits, ``limit``, ``remaining`` and ``reset_at`` are those of the one that
    decides: the one that makes the caller wait longest, or the one with the least room left.
    """

    allowed: bool
    state: State
    limit: int
    """How many permits the deciding limit gives at most; 0 where it counts nothing."""
    remaining: int
    """How many more it would give now."""
    retry_after: timedelta
    """How long to wait before asking again; zero when allowed. Exact if nobody else asks."""
    reset_at: datetime
    """When nothing that was taken counts any more, by the server's clock, aware UTC."""
    granted: int = 0
    """How many permits were taken."""
    permit: str = ""
    """Under which id; give it back by this."""
    refused_by: str | None = None
    """The limit that refused, as text; None unless refused."""

    def __bool__(self) -> bool:
        return self.allowed


class Part(ABC):
    """One limit: how many permits, by which algorithm. A plain value without a connection."""

    kind: ClassVar[str]
    """Name of the algorithm's part in ``dispatcher/lua``."""
    knows_permits: ClassVar[bool] = False
    """Whether it keeps the ids of its permits, so that none need be remembered for it."""
    holds: ClassVar[bool] = False
    """Whether its permits are holds, which end when they are given back."""
    closes: ClassVar[bool] = False
    """Whether it can be closed for a while."""

    @property
    def aligned(self) -> bool:
        """Whether its words depend on the time."""
        return False

    @property
    def hold_ms(self) -> int:
        """How long a hold of it lasts, in ms."""
        return 0

    @property
    @abstractmethod
    def most(self) -> int:
        """How many permits it can ever give in one call; 0 where it counts nothing."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is called in Redis keys: its name, or its algorithm and numbers."""

    @abstractmethod
    def words(self, now_ms: int) -> Sequence[int]:
        """Return what its part of the scripts is told, at about that time (ms since 1970)."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise LimitersUnavailable for whatever redis-py raises inside."""
    try:
        yield
    except (redis.RedisError, RedisClusterException) as error:
        raise LimitersUnavailable(reason(error)) from cause(error)


def check_permits(n: int, field: str, most: int) -> None:
    """Raise InvalidValue unless ``n`` permits can be taken at once."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= most:
        raise InvalidValue(field, f"{n!r} permits", f"a whole number from 1 to {most}")


def length_ms(value: object, field: str, *, least: int, most: int) -> int:
    """Return a length in whole ms. Raises InvalidValue."""
    accepted = f"a timedelta of {least} to {most} ms, without parts of a ms"
    if not isinstance(value, timedelta) or value % timedelta(milliseconds=1):
        raise InvalidValue(field, f"{value!r}", accepted)
    ms = value // timedelta(milliseconds=1)
    if not least <= ms <= most:
        raise InvalidValue(field, f"{value!r}", accepted)
    return ms
