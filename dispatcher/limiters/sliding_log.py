"""Exact wherever the period begins: a log of permits, in a ZSET or in a LIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatcher.limiters.algorithm import CountPerLength


@dataclass(frozen=True)
class SlidingLog(CountPerLength):
    """At most ``count`` permits within any span shorter than ``period``.

    The time of every permit is a member of a ZSET, under its id. So an id is known, and can be
    returned, for a whole period. The price is memory: 25 bytes a permit while there are
    at most 128, 110 beyond. :class:`SlidingList` decides the same in a fraction of it.
    """

    kind: ClassVar[str] = "sliding_log"
    keeps_each: ClassVar[bool] = True
    knows_permits: ClassVar[bool] = True


@dataclass(frozen=True)
class SlidingList(CountPerLength):
    """At most ``count`` permits within any span shorter than ``period``.

    Decides as :class:`SlidingLog` does, call for call. Only times are stored, about 10 bytes a
    permit, and the N-th oldest is compared: the same work for any ``count``. Ids are remembered
    for as long as ``remember`` says, and for so long they can be returned.
    """

    kind: ClassVar[str] = "sliding_list"
    keeps_each: ClassVar[bool] = True
