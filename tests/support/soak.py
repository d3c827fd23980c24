"""How many examples property tests try: few in the suite, many where DISPATCHER_SOAK is set."""

from __future__ import annotations

import os

SOAKING = bool(os.environ.get("DISPATCHER_SOAK"))
_TIMES_AS_MANY = 40


def examples(usual: int) -> int:
    """Return how many examples to try of what usually takes so many."""
    return usual * _TIMES_AS_MANY if SOAKING else usual
