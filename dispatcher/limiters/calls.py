"""What a set of limits is asked for one key: to take permits, to tell, to give back, to forget."""

from __future__ import annotations

import random
from datetime import timedelta

from dispatcher.errors import InvalidValue, LimitersUnavailable, LimitReached, quoted
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.asking import Asking, Call, Pause, Steps, checked, new_id
from dispatcher.limiters.base import check_permits
from dispatcher.limiters.decision import Decision, State
from dispatcher.limiters.holds import waits

_LONGEST_TIMEOUT = 366 * 86_400.0
_LONGEST_PAUSE_FOR_HOLDS = 0.1  # a hold may be given back long before it ends


def acquire(
    asking: Asking,
    keys: Keys,
    n: int,
    *,
    permit: str | None,
    wait: bool,
    timeout: timedelta | float | None,
) -> Steps[Decision]:
    """Take ``n`` permits or none; with ``wait`` ask again until they are there."""
    permit = new_id() if permit is None else checked(permit)
    try:
        return (yield from _acquire(asking, keys, n, permit, wait=wait, timeout=timeout))
    except LimitersUnavailable as error:
        return asking.unknown(error, permit)


def enter(
    asking: Asking,
    keys: Keys,
    n: int,
    permit: str,
    *,
    wait: bool,
    timeout: timedelta | float | None,
) -> Steps[Decision]:
    """As ``acquire``, for a block that must not run without permits.

    Raises LimitReached, and LimitersUnavailable whatever the policy.
    """
    decision = yield from _acquire(asking, keys, n, permit, wait=wait, timeout=timeout)
    if not decision:
        raise LimitReached(
            limit=decision.refused_by or "",
            others=tuple(each.limit for each in decision.refusals[1:]),
            retry_after=decision.retry_after,
            reset_at=decision.reset_at,
        )
    return decision


def acquire_up_to(asking: Asking, keys: Keys, n: int, *, permit: str | None) -> Steps[Decision]:
    """Take as many of ``n`` permits as fit."""
    check_permits(n, asking.parts, whole=False)
    permit = new_id() if permit is None else checked(permit)
    try:
        return (yield from _take(asking, keys, n, min(n, 1), permit))
    except LimitersUnavailable as error:
        return asking.unknown(error, permit)


def peek(asking: Asking, keys: Keys, n: int) -> Steps[Decision]:
    """Tell what ``acquire`` would answer; take nothing."""
    check_permits(n, asking.parts)
    states = asking.addresses.states(asking.addresses.each(keys))

    def call(now_ms: int) -> Call:
        return Call("limits_peek", states, (n, *asking.words(now_ms)))

    try:
        now, *reply = yield from asking.ask(call)
    except LimitersUnavailable as error:
        return asking.unknown(error, "")
    return asking.decision(now, reply, None, "", peeked=True)


def give_back(asking: Asking, keys: Keys, permit: str) -> Steps[int]:
    """Give the permits of one id back; return how many."""
    names = asking.addresses.whole(keys)
    checked(permit)

    def call(now_ms: int) -> Call:
        return Call("limits_give_back", names, (asking.span, permit, *asking.words(now_ms)))

    _, given_back = yield from asking.ask(call)
    return given_back


def reset(asking: Asking, keys: Keys) -> Steps[None]:
    """Forget all that was taken for ``keys``."""
    names = asking.addresses.whole(keys)
    yield Call("limits_reset", names, ())


def _acquire(
    asking: Asking,
    keys: Keys,
    n: int,
    permit: str,
    *,
    wait: bool,
    timeout: timedelta | float | None,
) -> Steps[Decision]:
    check_permits(n, asking.parts)
    if not wait:
        if timeout is not None:
            raise InvalidValue("timeout", "given without wait=True", "None, or wait=True")
        return (yield from _take(asking, keys, n, n, permit))
    seconds = _seconds(timeout)
    deadline = None if seconds is None else asking.clock.monotonic() + seconds
    waited = False
    while True:
        decision = yield from _take(asking, keys, n, n, permit)
        if decision or decision.state is State.OVERSIZED:
            return decision
        left = None if deadline is None else deadline - asking.clock.monotonic()
        pause, held = waits(asking, decision)
        soon = min(held, _LONGEST_PAUSE_FOR_HOLDS)
        pause = max(pause, soon if left is None or left <= 0 else min(soon, left))
        if left is not None and pause > left:
            return decision
        if waited:
            # Somebody was quicker. Those who were told one time must not all come at it again.
            pause += random.uniform(0, asking.spacing(decision))  # noqa: S311 - no secret
            pause = pause if left is None else min(pause, left)
        waited = True
        yield Pause(pause)


def _take(asking: Asking, keys: Keys, n: int, least: int, permit: str) -> Steps[Decision]:
    names = asking.addresses.whole(keys)

    def call(now_ms: int) -> Call:
        words = asking.words(now_ms)
        return Call("limits_acquire", names, (asking.span, *words, permit, 0, n, least))

    if asking.aligned:
        now, *flat = yield from asking.ask(call)
    else:
        now, *flat = yield call(0)
    return asking.decision(now, flat, None, permit)


def _seconds(timeout: timedelta | float | None) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidValue("timeout", quoted(timeout), "None, a timedelta, or seconds from 0 on")
    return min(seconds, _LONGEST_TIMEOUT)
