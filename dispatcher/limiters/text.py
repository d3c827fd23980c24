"""Limits from a string."""

from __future__ import annotations

from dispatcher.errors import InvalidValue
from dispatcher.limiters.counted import CountPerLength
from dispatcher.limiters.fixed_window import FixedWindow
from dispatcher.limiters.gcra import GCRA
from dispatcher.limiters.sliding_list import SlidingList

_ACCEPTED = "'100/second', '2/30 second', '5/day in Asia/Shanghai' or '50/second burst 200'"


def parse(text: str) -> CountPerLength:
    """Read a limit, and choose its algorithm. Raises InvalidValue.

    ``"100/second"`` is exact wherever the period begins: a :class:`SlidingList`. ``"5/day in
    Asia/Shanghai"`` goes by the calendar: a :class:`FixedWindow`. ``"50/second burst 200"``
    spaces: a :class:`GCRA`.
    """
    if not isinstance(text, str):
        raise InvalidValue("limit", f"{text!r}", _ACCEPTED)
    words = text.split()
    if "burst" in words:
        return GCRA.parse(text)
    if "in" in words:
        return FixedWindow.parse(text)
    return SlidingList.parse(text)
