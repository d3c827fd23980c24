"""Exact wherever the period begins: a log of permits, in a LIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatcher.limiters.counted import CountPerLength


@dataclass(frozen=True)
class SlidingList(CountPerLength):
    """At most ``count`` permits within any span shorter than ``period``.

    Decides as :class:`SlidingLog` does, call for call. Only times are kept, about 10 bytes a
    permit, and the N-th oldest is compared: the same work for any ``count``. Ids are remembered
    for as long as ``remember`` says, and for so long they can be given back.
    """

    kind: ClassVar[str] = "sliding_list"
    keeps_each: ClassVar[bool] = True
