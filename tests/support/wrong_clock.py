"""``dispatcher …`` in a process whose wall clock is wrong: ``python -m tests.support.wrong_clock``.

libfaketime moves the wall clock and leaves the monotonic one alone, but it spoils
``clock_nanosleep`` until an instant of the monotonic clock, by which ``time.sleep`` sleeps.
"""

from __future__ import annotations

import runpy
import select
import time
from pathlib import Path
from typing import SupportsIndex

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""libfaketime as Debian installs it."""


def faked(seconds: int) -> list[str]:
    """Return the words before a command whose clock is off by so much."""
    return [
        "env",
        f"LD_PRELOAD={LIBRARY}",
        f"FAKETIME={seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select((), (), (), float(seconds))


if __name__ == "__main__":
    time.sleep = _sleep
    runpy.run_module("dispatcher", run_name="__main__", alter_sys=True)
