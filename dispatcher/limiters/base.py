"""Shared by all limiters: the interface of a limit, and the translation of redis-py's errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import ClassVar

import redis
from redis.exceptions import RedisClusterException

from dispatcher.errors import InvalidValue, LimitersUnavailable, quoted
from dispatcher.quota import Limit
from dispatcher.redis.errors import cause, reason

MOST_KEPT_AT_ONCE = 10_000
"""The most permits of one call where each is an entry of its own, so that no script runs long."""
_MOST = (1 << 53) - 1
"""Scripts count exactly up to here."""


class Part(ABC):
    """One limit: how many permits, by which algorithm. A plain value without a connection."""

    kind: ClassVar[str]
    """Name of the algorithm's part in ``limiters/lua``."""
    knows_permits: ClassVar[bool] = False
    """Whether its state has the ids of its permits, so that they need not be remembered."""
    holds: ClassVar[bool] = False
    """Whether its permits are holds, which end when they are returned."""
    keeps_each: ClassVar[bool] = False
    """Whether each permit is an entry of its own, so that the work grows with their number."""
    closes: ClassVar[bool] = False
    """Whether it can be closed for a while."""

    name: str | None

    @property
    def aligned(self) -> bool:
        """Whether its arguments depend on the time."""
        return False

    @property
    def length_ms(self) -> int:
        """The period in ms; 0 where there is none."""
        return 0

    @property
    def hold_ms(self) -> int:
        """How long a hold of it lasts, in ms."""
        return 0

    @property
    def spacing_ms(self) -> float:
        """How far apart its permits are on average, in ms; 0 where it has no period."""
        return 0.0

    @property
    @abstractmethod
    def most(self) -> int:
        """How many permits it can ever give in one call; 0 where it counts nothing."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in Redis keys: its algorithm, then its numbers or name."""

    @abstractmethod
    def words(self, now_ms: int, further: int = 0) -> Sequence[int | bytes]:
        """Return the arguments of its part of the scripts, at about that time (ms since 1970).

        ``further`` is how many windows after the next one the script may give as a turn.
        """


class _Translated:
    """One for all calls: it has no state."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, redis.RedisError | RedisClusterException):
            raise LimitersUnavailable(reason(error)) from cause(error)


_TRANSLATED = _Translated()


def translated() -> AbstractContextManager[None]:
    """Raise LimitersUnavailable for any error of redis-py inside."""
    return _TRANSLATED


def check_permits(n: int, parts: Sequence[Part], *, whole: bool = True) -> None:
    """Raise InvalidValue unless ``n`` permits can be asked for at once.

    More than a limit ever gives can be asked for, and is refused. ``whole``: all or none.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= _MOST:
        raise InvalidValue("n", f"{quoted(n)} permits", f"a whole number from 0 to {_MOST}")
    if n <= MOST_KEPT_AT_ONCE or not any(each.keeps_each for each in parts):
        return
    most = min((each.most for each in parts if each.most), default=n)
    if most > MOST_KEPT_AT_ONCE and (n <= most or not whole):
        accepted = f"at most {MOST_KEPT_AT_ONCE} at once of a limit that keeps each of its permits"
        raise InvalidValue("n", f"{n} permits", accepted)


def length_ms(value: object, field: str, *, least: int, most: int) -> int:
    """Return a length in whole ms. Raises InvalidValue."""
    accepted = f"a timedelta of {least} to {most} ms, without parts of a ms"
    if not isinstance(value, timedelta) or value % timedelta(milliseconds=1):
        raise InvalidValue(field, quoted(value), accepted)
    ms = value // timedelta(milliseconds=1)
    if not least <= ms <= most:
        raise InvalidValue(field, quoted(value), accepted)
    return ms


def check_count(count: int) -> None:
    """Raise InvalidValue unless a limit can have that count."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= Limit.MOST:
        raise InvalidValue("count", quoted(count), f"a whole number from 1 to {Limit.MOST}")
