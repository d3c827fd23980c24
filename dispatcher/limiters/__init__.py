"""Limiters: every algorithm of the field, exact, in one round trip.

They need nothing but a client of ``redis`` or ``redis.asyncio``::

    from dispatcher.limiters import FixedWindow

    limiter = FixedWindow(5, "minute").on(redis.Redis())
    if limiter.acquire("ada"):
        ...

A limit is a plain value; ``on`` puts it on a client. Time is always Redis ``TIME``.
``docs/limiters.md`` says which algorithm to use when.

``Permits`` are the limits of this package's own deliveries, ``Fills`` read how full they are.
"""

from dispatcher.errors import LimitersUnavailable, LimitReached
from dispatcher.limiters.algorithm import Algorithm
from dispatcher.limiters.concurrency import Concurrency
from dispatcher.limiters.cool_down import CoolDown
from dispatcher.limiters.decision import Decision, Refusal, State
from dispatcher.limiters.fills import ChannelFill, Fills, LimitFill
from dispatcher.limiters.fixed_window import CounterPerKey, FixedWindow
from dispatcher.limiters.gcra import GCRA
from dispatcher.limiters.limiter import AsyncLimiter, Limiter
from dispatcher.limiters.limits import Limits, parse
from dispatcher.limiters.operations import Request
from dispatcher.limiters.permit_logs import (
    InHand,
    LogKind,
    LogLimit,
    PermitAnswer,
    PermitLeg,
    PermitLogs,
)
from dispatcher.limiters.permits import Permit, Permits, reaches_ms
from dispatcher.limiters.sliding_counter import SlidingCounter
from dispatcher.limiters.sliding_log import SlidingList, SlidingLog

__all__ = [
    "GCRA",
    "Algorithm",
    "AsyncLimiter",
    "ChannelFill",
    "Concurrency",
    "CoolDown",
    "CounterPerKey",
    "Decision",
    "Fills",
    "FixedWindow",
    "InHand",
    "LimitFill",
    "LimitReached",
    "Limiter",
    "LimitersUnavailable",
    "Limits",
    "LogKind",
    "LogLimit",
    "Permit",
    "PermitAnswer",
    "PermitLeg",
    "PermitLogs",
    "Permits",
    "Refusal",
    "Request",
    "SlidingCounter",
    "SlidingList",
    "SlidingLog",
    "State",
    "parse",
    "reaches_ms",
]
