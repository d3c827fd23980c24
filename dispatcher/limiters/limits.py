"""Several limits that give a permit together, and limits from a string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.errors import InvalidValue, quoted
from dispatcher.limiters.algorithm import Algorithm, Bindable, CountPerLength
from dispatcher.limiters.algorithms import GCRA, FixedWindow, SlidingList
from dispatcher.quota import lacks_zone

_ACCEPTED = (
    "'100/second', '10 per 30 s', '5/day in Asia/Shanghai' or '50/second burst 200', "
    "or several of these with ; between them"
)
_BETWEEN = re.compile(r"[;,|]")


@dataclass(frozen=True)
class Limits(Bindable):
    """Several limits that are asked in one script, and give a permit together or not at all.

    ``Limits`` among them stand for theirs, in order: ``limits`` has only single ones.
    """

    limits: Sequence[Algorithm | Limits]

    def __post_init__(self) -> None:
        accepted = "limits such as FixedWindow(5, 'minute'), at least one"
        if not isinstance(self.limits, Sequence) or not self.limits:
            raise InvalidValue("limits", quoted(self.limits), accepted)
        single: list[Algorithm | Limits] = []
        for each in self.limits:
            if not isinstance(each, Algorithm | Limits):
                raise InvalidValue("limits", quoted(each), accepted)
            single += each.limits if isinstance(each, Limits) else [each]
        object.__setattr__(self, "limits", tuple(single))

    @property
    def parts(self) -> tuple[Algorithm, ...]:
        """The limits that are asked together, in order."""
        return tuple(part for each in self.limits for part in each.parts)

    def __str__(self) -> str:
        return "; ".join(str(each) for each in self.limits)


def parse(text: str) -> CountPerLength | Limits:
    """Read a limit, and choose its algorithm; or several, as ``Limits``. Raises InvalidValue.

    ``"100/second"``, also written ``"100 per second"`` or ``"100/s"``, is exact wherever the period
    begins: a :class:`SlidingList`. ``"5/day in Asia/Shanghai"`` goes by the calendar: a
    :class:`FixedWindow`. ``"50/second burst 200"`` spaces: a :class:`GCRA`. Several are
    separated by ``;`` (or ``,`` or ``|``): ``"10/s; 100000/day"``.
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
    if (problem := lacks_zone(text)) is not None:
        raise InvalidValue("limit", problem, "'5/month in Asia/Shanghai'")
    return SlidingList.parse(text)
