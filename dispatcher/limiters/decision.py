"""The answer of a limiter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, final

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
NEVER = timedelta.max
_FIELDS = (
    "allowed", "state", "limit", "remaining", "retry_after", "reset_at", "granted", "permit",
    "refusals",
)  # fmt: skip


class State(StrEnum):
    """How a limiter answered."""

    ALLOWED = "allowed"
    REACHED = "reached"
    """Allowed, and nothing more is left: a batch may pause here."""
    REFUSED = "refused"
    OVERSIZED = "oversized"
    """Refused for good: a limit never gives so many permits at once."""
    UNKNOWN = "unknown"
    """Redis could not be asked. Not allowed; the caller may decide otherwise."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One limit that refused.

    ``limit`` is its text: ``5/minute``, with a name ``login (5/minute)``, and of several that read
    alike ``5/minute (limit 2 of 3)``. ``place`` is its index among the limits, from 0.
    ``retry_after`` is how long it alone makes the caller wait; ``timedelta.max`` where it never
    gives so many permits at once.
    """

    limit: str
    place: int
    retry_after: timedelta


@final
class Decision:
    """A limiter's answer. True in a condition exactly when ``allowed``. Immutable.

    Of several limits, ``limit``, ``remaining`` and ``reset_at`` are those of the one that
    decides: the one that makes the caller wait longest, or the one with the least room left.
    ``refusals`` has all that refused.
    """

    __slots__ = ("_facts",)
    _facts: tuple[Any, ...]

    def __init__(
        self,
        *,
        allowed: bool,
        state: State,
        limit: int,
        remaining: int,
        retry_after: timedelta | int,
        reset_at: datetime | int,
        granted: int = 0,
        permit: str = "",
        refusals: tuple[Refusal, ...] = (),
    ) -> None:
        """Make a decision. Times may be given in ms (since 1970); they are converted when read."""
        _set(
            self,
            (
                allowed, state, limit, remaining, retry_after, reset_at, granted, permit,
                refusals,
            ),
        )  # fmt: skip

    @property
    def allowed(self) -> bool:
        """Whether it may go now."""
        allowed: bool = self._facts[0]
        return allowed

    @property
    def state(self) -> State:
        """How the limiter answered."""
        state: State = self._facts[1]
        return state

    @property
    def limit(self) -> int:
        """How many permits the deciding limit gives at most; 0 where it counts nothing."""
        limit: int = self._facts[2]
        return limit

    @property
    def remaining(self) -> int:
        """How many more it would give now."""
        remaining: int = self._facts[3]
        return remaining

    @property
    def retry_after(self) -> timedelta:
        """How long to wait before asking again; zero when allowed.

        Exact if no other caller asks meanwhile.
        ``timedelta.max`` when the state is ``oversized``: waiting does not help.
        """
        wait: timedelta | int = self._facts[4]
        return wait if isinstance(wait, timedelta) else wait * MILLISECOND

    @property
    def reset_at(self) -> datetime:
        """When no permit that was taken counts any more, by the server's clock, aware UTC."""
        at: datetime | int = self._facts[5]
        return at if isinstance(at, datetime) else EPOCH + at * MILLISECOND

    @property
    def granted(self) -> int:
        """How many permits were taken."""
        granted: int = self._facts[6]
        return granted

    @property
    def permit(self) -> str:
        """The id of the permits; ``give_back`` takes it."""
        permit: str = self._facts[7]
        return permit

    @property
    def refused_by(self) -> str | None:
        """The limit that makes the caller wait longest, as text; None unless refused."""
        return self.refusals[0].limit if self.refusals else None

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All limits that refused, the longest wait first; empty unless refused."""
        refusals: tuple[Refusal, ...] = self._facts[8]
        return refusals

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        return self._shown() == other._shown() if isinstance(other, Decision) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._shown())

    def __repr__(self) -> str:
        shown = zip(_FIELDS, self._shown(), strict=True)
        return f"Decision({', '.join(f'{name}={value!r}' for name, value in shown)})"

    def __reduce__(self) -> tuple[Callable[..., Decision], tuple[Any, ...]]:
        return _again, self._facts

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Decision does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Decision does not change: {name}")

    def _shown(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _FIELDS)


def _again(*facts: Any) -> Decision:
    return Decision(**dict(zip(_FIELDS, facts, strict=True)))


_set = vars(Decision)["_facts"].__set__  # as a frozen dataclass sets its fields
