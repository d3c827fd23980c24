"""What all limiters share: what a limit must say, and what redis-py's errors mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import ClassVar

import redis
from redis.exceptions import RedisClusterException

from dispatcher.errors import InvalidValue, LimitersUnavailable
from dispatcher.redis_errors import cause, reason

MOST_AT_ONCE = 10_000
"""More permits are not given in one call, so that no script runs long."""


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
    def spacing_ms(self) -> float:
        """How far apart its permits are on average, in ms; 0 where no length tells."""
        return 0.0

    @property
    @abstractmethod
    def most(self) -> int:
        """How many permits it can ever give in one call; 0 where it counts nothing."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is called in Redis keys: its name, or its algorithm and numbers."""

    @abstractmethod
    def words(self, now_ms: int) -> Sequence[int | bytes]:
        """Return what its part of the scripts is told, at about that time (ms since 1970)."""


class _Translated:
    """One for all calls: it keeps nothing."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, redis.RedisError | RedisClusterException):
            raise LimitersUnavailable(reason(error)) from cause(error)


_TRANSLATED = _Translated()


def translated() -> AbstractContextManager[None]:
    """Raise LimitersUnavailable for whatever redis-py raises inside."""
    return _TRANSLATED


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
