"""What guards the actual sends: one algorithm a file, each with its script.

A limiter answers "may this go now?" with a :class:`Decision`. Time is always Redis ``TIME``.
``permits`` says which limits guard a delivery.
"""

from dispatcher.limiters.base import Decision
from dispatcher.limiters.permits import Permit, Permits, reaches_ms
from dispatcher.limiters.sliding_log import PermitRequest, SlidingLog

__all__ = ["Decision", "Permit", "PermitRequest", "Permits", "SlidingLog", "reaches_ms"]
