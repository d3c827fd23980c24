"""What holds and cool-downs are asked: to renew or end the ones, to close the others."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from dispatcher.errors import InvalidValue, quoted
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.asking import Asking, Call, Steps, checked
from dispatcher.limiters.base import length_ms
from dispatcher.limiters.decision import EPOCH, MILLISECOND, Decision
from dispatcher.times.send_time import to_ms

_LONGEST_CLOSED_MS = 366 * 86_400_000


def has_holds(asking: Asking) -> bool:
    """Whether permits hold a place that must be renewed and given back."""
    return any(each.holds for each in asking.parts)


def waits(asking: Asking, refused: Decision) -> tuple[float, float]:
    """Return how long a refusal lasts at least, in seconds, and how long for its holds at most.

    Holds may end before the time that their limit names.
    """
    seconds, held = 0.0, 0.0
    for each in refused.refusals:
        if asking.parts[each.place].holds:
            held = max(held, each.retry_after.total_seconds())
        else:
            seconds = max(seconds, each.retry_after.total_seconds())
    return seconds, held


def renew_every(asking: Asking) -> float:
    """How often holds should be renewed, in seconds."""
    return min(each.hold_ms for each in asking.parts if each.holds) / 3_000


def renew(asking: Asking, keys: Keys, permit: str) -> Steps[bool]:
    """Renew the holds of one id; return False if one has ended."""
    holds = _that(asking, "holds", "a Concurrency")
    states = asking.addresses.states(asking.addresses.each(keys))
    lengths = [asking.parts[place].hold_ms for place in holds]
    args: list[str | int] = [checked(permit), *lengths]
    [done] = yield Call("limits_renew", [states[place] for place in holds], args)
    return done == 1


def end_holds(asking: Asking, keys: Keys, permit: str) -> Steps[int]:
    """End the holds of one id; what else it took stays taken."""
    holds = _that(asking, "holds", "a Concurrency")
    states = asking.addresses.states(asking.addresses.each(keys))
    names = [states[place] for place in holds]
    [ended] = yield Call("limits_end_holds", names, (checked(permit),))
    return ended


def close(
    asking: Asking, keys: Keys, *, length: timedelta | None, until: datetime | None
) -> Steps[datetime]:
    """Close cool-downs; return until when they are closed."""
    places = _that(asking, "closes", "a CoolDown")
    if (length is None) == (until is None):
        raise InvalidValue("until", "not exactly one of length and until", "one of the two")
    if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
        raise InvalidValue("until", quoted(until), "an aware datetime")
    ms = 0
    if length is not None:
        ms = length_ms(length, "length", least=1, most=_LONGEST_CLOSED_MS)
    until_ms = 0 if until is None else max(0, to_ms(until))
    states = asking.addresses.states(asking.addresses.each(keys))
    [ends] = yield Call("limits_close", [states[place] for place in places], (ms, until_ms))
    return EPOCH + ends * MILLISECOND


def _that(asking: Asking, what: Literal["holds", "closes"], accepted: str) -> list[int]:
    found = [place for place, each in enumerate(asking.parts) if getattr(each, what)]
    if not found:
        raise InvalidValue("limits", f"none of them {what} anything", f"{accepted} among them")
    return found
