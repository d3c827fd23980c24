"""Limits from a string."""

from __future__ import annotations

import re

from dispatcher.errors import InvalidValue, quoted
from dispatcher.limiters.binding import Limits
from dispatcher.limiters.counted import CountPerLength
from dispatcher.limiters.fixed_window import FixedWindow
from dispatcher.limiters.gcra import GCRA
from dispatcher.limiters.sliding_list import SlidingList

_ACCEPTED = (
    "'100/second', '10 per 30 s', '5/day in Asia/Shanghai' or '50/second burst 200', "
    "or several of these with ; between them"
)
_BETWEEN = re.compile(r"[;,|]")


def parse(text: str) -> CountPerLength | Limits:
    """Read a limit, and choose its algorithm; or several, as ``Limits``. Raises InvalidValue.

    ``"100/second"``, also written ``"100 per second"`` or ``"100/s"``, is exact wherever the period
    begins: a :class:`SlidingList`. ``"5/day in Asia/Shanghai"`` goes by the calendar: a
    :class:`FixedWindow`. ``"50/second burst 200"`` spaces: a :class:`GCRA`. Between several stands
    ``;`` (or ``,`` or ``|``): ``"10/s; 100000/day"``.
    """
    if not isinstance(text, str):
        raise InvalidValue("limit", quoted(text), _ACCEPTED)
    each = [_parsed(one) for one in _BETWEEN.split(text)]
    return each[0] if len(each) == 1 else Limits(each)


def _parsed(text: str) -> CountPerLength:
    words = text.split()
    if "burst" in words:
        return GCRA.parse(text)
    if "in" in words:
        return FixedWindow.parse(text)
    return SlidingList.parse(text)
