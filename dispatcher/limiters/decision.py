"""The answer of a limiter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

NEVER = timedelta.max


class State(StrEnum):
    """How a limiter answered."""

    ALLOWED = "allowed"
    REACHED = "reached"
    """Allowed, and nothing more is left: a batch may pause here."""
    REFUSED = "refused"
    OVERSIZED = "oversized"
    """Refused for good: a limit never gives so many permits at once."""
    UNKNOWN = "unknown"
    """Redis could not be asked. Allowed only where ``on_error`` says so."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One limit that refused.

    ``limit`` is its text: ``5/minute``, with a name ``login (5/minute)``, and of several that read
    alike ``5/minute (limit 2 of 3)``. ``index`` is its position among the limits, from 0.
    ``retry_after`` is how long it alone makes the caller wait; ``timedelta.max`` where it never
    gives so many permits at once.
    """

    limit: str
    index: int
    retry_after: timedelta


class Decision(NamedTuple):
    """A limiter's answer. True in a condition exactly when ``allowed``.

    Of several limits, ``limit``, ``remaining`` and ``reset_at`` are those of the one that
    decides: the one that makes the caller wait longest, or the one with the least room left.
    """

    allowed: bool
    """Whether it may go now."""
    state: State
    """How the limiter answered."""
    limit: int
    """How many permits the deciding limit gives at most; 0 where it counts nothing."""
    remaining: int
    """How many more it would give now."""
    retry_after: timedelta
    """How long to wait before asking again; zero when allowed.

    Exact if no other caller asks meanwhile.
    ``timedelta.max`` when the state is ``oversized``: waiting does not help.
    """
    reset_at: datetime
    """When no permit that was taken counts any more, by the server's clock, aware UTC."""
    granted: int = 0
    """How many permits were taken."""
    permit: str = ""
    """The id of the permits; ``give_back`` takes it."""
    refusals: tuple[Refusal, ...] = ()
    """All limits that refused, the longest wait first; empty unless refused."""
    position: int = 0
    """The position of the deciding limit among the limits, from 0."""

    @property
    def refused_by(self) -> str | None:
        """The limit that makes the caller wait longest, as text; None unless refused."""
        return self.refusals[0].limit if self.refusals else None

    def __bool__(self) -> bool:
        return self.allowed
