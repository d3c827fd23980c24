"""Scripts that may do so little in one call that also small windows take several."""

from __future__ import annotations

import re
from collections.abc import Callable

from dispatcher.redis.scripts import Script, source

LIMITS = {
    "MOST_READ, MOST_LEAPS": "{}, 3",
    "SHORT": "1",
    "MOST_FOR_BLOCKED": "2",
    "LEAST_SCAN, MOST_SCAN": "1, 2",
}
"""What bounds the work of one call, so small that hardly any judgement ends in one."""


def little_at_once(most_read: int) -> Callable[[str], Script]:
    def read(name: str) -> Script:
        text = source(name)
        if name in {f"reservation/{each}" for each in ("reserve", "next_slot", "check")}:
            for names, values in LIMITS.items():
                changed = f"local {names} = {values.format(most_read)}\n"
                text, times = re.subn(rf"local {names} = [\d, ]+\n", changed, text)
                assert times == 1
        return Script.of(text)

    return read
