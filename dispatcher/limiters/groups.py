"""What a set of limits is asked for a group of requests, in one script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.errors import InvalidValue, LimitersUnavailable
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.asking import Asking, Call, Steps, checked, new_id
from dispatcher.limiters.base import MOST_AT_ONCE, Part, check_permits
from dispatcher.limiters.decision import Decision


@dataclass(frozen=True, slots=True)
class Request:
    """One of a group of requests: ``n`` permits for ``keys``, from some of the limits.

    ``limits`` says which, by their places from 0; None means all. ``keys`` is one key for all of
    these, or one for each. ``permit`` is an id of the caller's own; asked for again under the same
    id, the permits are granted again and not counted twice.
    """

    keys: Keys
    n: int = 1
    permit: str | None = None
    limits: tuple[int, ...] | None = None


def acquire_each(asking: Asking, requests: Sequence[Request]) -> Steps[list[Decision]]:
    """Take permits for each of a group, in order."""
    if not requests:
        return []
    groups, places, permits = [], [], []
    for each in requests:
        chosen = _chosen(asking, each.limits)
        mosts = [asking.parts[place].most for place in chosen]
        check_permits(each.n, "n", min([most for most in mosts if most] + [MOST_AT_ONCE]))
        groups.append(asking.addresses.each(each.keys, chosen))
        places.append(chosen)
        permits.append(new_id() if each.permit is None else checked(each.permit))
    if (together := sum(each.n for each in requests)) > MOST_AT_ONCE:
        raise InvalidValue("requests", f"{together} permits", f"{MOST_AT_ONCE} together")
    asking.addresses.check_group(groups)
    states: dict[str, int] = {}
    parts: list[Part] = []
    wanted: list[str | int] = []
    for request, permit, keys, chosen in zip(requests, permits, groups, places, strict=True):
        wanted += (permit, 0, request.n, request.n, len(chosen))
        for place, state in zip(chosen, asking.addresses.states(keys, chosen), strict=True):
            if state not in states:
                states[state] = len(states) + 1
                parts.append(asking.parts[place])
            wanted.append(states[state])

    def call(now_ms: int) -> Call:
        args = (asking.span, *asking.words_of(now_ms, parts), *wanted)
        return Call("limits_acquire", (*asking.addresses.permits(groups[0]), *states), args)

    try:
        now, *flat = yield from asking.ask(call)
    except LimitersUnavailable as error:
        return [asking.unknown(error, permit) for permit in permits]
    return [
        asking.decision(now, flat[5 * number : 5 * number + 5], chosen, permit)
        for number, (chosen, permit) in enumerate(zip(places, permits, strict=True))
    ]


def _chosen(asking: Asking, limits: tuple[int, ...] | None) -> tuple[int, ...]:
    many = len(asking.parts)
    if limits is None:
        return tuple(range(many))
    if len(set(limits)) < len(limits) or not all(0 <= each < many for each in limits):
        raise InvalidValue("limits", f"{limits!r}", f"different places from 0 to {many - 1}")
    return limits
