"""When to try again after a temporary failure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta


def backoff(
    attempt: int,
    *,
    base: timedelta,
    longest: timedelta,
    at_least: timedelta | None,
    random: Callable[[], float],
) -> timedelta:
    """Return the wait before the attempt after number ``attempt`` (1 for the first).

    Exponential with full jitter: uniform between 0 and ``base * 2 ** (attempt - 1)``, capped at
    ``longest``. Full jitter spreads a herd that failed together better than any narrower one
    (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015). ``at_least`` is
    what the provider asked for and is added before the jitter, so that those it turned away
    together do not come back together.
    """
    exponent = min(attempt - 1, 32)
    ceiling: timedelta = min(base * (1 << exponent), longest)
    wait: timedelta = (at_least or timedelta(0)) + ceiling * random()
    return wait
