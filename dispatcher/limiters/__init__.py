"""Limiters: every algorithm of the field, exact, in one round trip.

They need nothing but a client of ``redis`` or ``redis.asyncio``::

    from dispatcher.limiters import FixedWindow

    limiter = FixedWindow(5, "minute").on(redis.Redis())
    if limiter.acquire("ada"):
        ...

A limit is a plain value; ``on`` puts it on a client. Time is always Redis ``TIME``.
``docs/limiters.md`` says which algorithm to use when.

``dispatcher.limiters.permits`` has the limits of this package's own deliveries.
"""

from dispatcher.errors import LimitersUnavailable, LimitReached
from dispatcher.limiters.algorithms import (
    GCRA,
    Algorithm,
    Concurrency,
    CoolDown,
    CounterPerKey,
    FixedWindow,
    Limits,
    SlidingCounter,
    SlidingList,
    SlidingLog,
    parse,
)
from dispatcher.limiters.limit_set import Decision, Refusal, Request, State
from dispatcher.limiters.limiter import AsyncLimiter, Limiter

__all__ = [
    "GCRA",
    "Algorithm",
    "AsyncLimiter",
    "Concurrency",
    "CoolDown",
    "CounterPerKey",
    "Decision",
    "FixedWindow",
    "LimitReached",
    "Limiter",
    "LimitersUnavailable",
    "Limits",
    "Refusal",
    "Request",
    "SlidingCounter",
    "SlidingList",
    "SlidingLog",
    "State",
    "parse",
]
