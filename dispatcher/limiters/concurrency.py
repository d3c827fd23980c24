"""Concurrency: at most so many permits in use at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from dispatcher.limiters.algorithm import Algorithm, check_count
from dispatcher.limiters.limit_set import length_ms
from dispatcher.times.lengths import MILLISECOND

_LONGEST_MS = 86_400_000


@dataclass(frozen=True)
class Concurrency(Algorithm):
    """At most ``count`` permits in use at the same time.

    Each is a hold. It ends when it is returned, or by itself after ``hold`` (10 ms to one day)
    unless it is renewed: so the hold of a process that crashed ends too. ``Limiter.permit`` renews
    and ends holds by itself. ``retry_after`` is an upper bound: when the next hold ends unless it
    is returned before. Raises InvalidValue.
    """

    count: int
    hold: timedelta = timedelta(seconds=30)
    name: str | None = None

    kind: ClassVar[str] = "concurrency"
    keeps_each: ClassVar[bool] = True
    knows_permits: ClassVar[bool] = True
    holds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count(self.count)
        length_ms(self.hold, "hold", least=10, most=_LONGEST_MS)
        super().__post_init__()

    @property
    def hold_ms(self) -> int:
        """How long a hold lasts, in ms."""
        return self.hold // MILLISECOND

    @property
    def most(self) -> int:
        """How many permits it can ever give in one call."""
        return self.count

    @property
    def words(self) -> Sequence[int]:
        """Its count and the length of a hold in ms."""
        return (self.count, self.hold_ms)

    @property
    def numbers(self) -> Sequence[int]:
        """Its count."""
        return (self.count,)

    def __str__(self) -> str:
        return f"{self.count} at once"
