"""The operations of a set of limits for one key, as steps that both kinds of limiter run."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Literal

from dispatcher.errors import InvalidValue, LimitersUnavailable, LimitReached, quoted
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.base import check_permits, length_ms
from dispatcher.limiters.decision import EPOCH, MILLISECOND, Decision, State
from dispatcher.limiters.limit_set import Call, LimitSet, Pause, Steps, checked, new_id
from dispatcher.times.send_time import to_ms

_LONGEST_TIMEOUT = 366 * 86_400.0
_LONGEST_CLOSED_MS = 366 * 86_400_000
_LONGEST_PAUSE_FOR_HOLDS = 0.1  # a hold may be returned long before it ends


def acquire(
    limit_set: LimitSet,
    keys: Keys,
    n: int,
    *,
    permit: str | None,
    wait: bool,
    timeout: timedelta | float | None,
) -> Steps[Decision]:
    """Take ``n`` permits or none; with ``wait`` ask again until they are granted."""
    permit = new_id() if permit is None else checked(permit)
    try:
        return (yield from _acquire(limit_set, keys, n, permit, wait=wait, timeout=timeout))
    except LimitersUnavailable as error:
        return limit_set.unknown(error, permit)


def enter(
    limit_set: LimitSet,
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
    decision = yield from _acquire(limit_set, keys, n, permit, wait=wait, timeout=timeout)
    if not decision:
        raise LimitReached(
            limit=decision.refused_by or "",
            others=tuple(each.limit for each in decision.refusals[1:]),
            retry_after=decision.retry_after,
            reset_at=decision.reset_at,
        )
    return decision


def acquire_up_to(
    limit_set: LimitSet, keys: Keys, n: int, *, permit: str | None
) -> Steps[Decision]:
    """Take as many of ``n`` permits as fit."""
    check_permits(n, limit_set.parts, whole=False)
    permit = new_id() if permit is None else checked(permit)
    try:
        return (yield from _take(limit_set, keys, n, min(n, 1), permit))
    except LimitersUnavailable as error:
        return limit_set.unknown(error, permit)


def peek(limit_set: LimitSet, keys: Keys, n: int) -> Steps[Decision]:
    """Return what ``acquire`` would answer; take no permits."""
    check_permits(n, limit_set.parts)
    states = limit_set.addresses.states(limit_set.addresses.each(keys))

    def call(now_ms: int) -> Call:
        return Call("limits_peek", states, (n, *limit_set.words(now_ms)))

    try:
        now, *reply = yield from limit_set.ask(call)
    except LimitersUnavailable as error:
        return limit_set.unknown(error, "")
    return limit_set.decision(now, reply, None, "", peeked=True)


def give_back(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[int]:
    """Return the permits of one id; return how many they were."""
    names = limit_set.addresses.whole(keys)
    checked(permit)

    def call(now_ms: int) -> Call:
        return Call("limits_give_back", names, (limit_set.span, permit, *limit_set.words(now_ms)))

    _, returned = yield from limit_set.ask(call)
    return returned


def reset(limit_set: LimitSet, keys: Keys) -> Steps[None]:
    """Forget all permits for ``keys``."""
    names = limit_set.addresses.whole(keys)
    yield Call("limits_reset", names, ())


def _acquire(
    limit_set: LimitSet,
    keys: Keys,
    n: int,
    permit: str,
    *,
    wait: bool,
    timeout: timedelta | float | None,
) -> Steps[Decision]:
    check_permits(n, limit_set.parts)
    if not wait:
        if timeout is not None:
            raise InvalidValue("timeout", "given without wait=True", "None, or wait=True")
        return (yield from _take(limit_set, keys, n, n, permit))
    seconds = _seconds(timeout)
    deadline = None if seconds is None else limit_set.clock.monotonic() + seconds
    waited = False
    while True:
        decision = yield from _take(limit_set, keys, n, n, permit)
        if decision or decision.state is State.OVERSIZED:
            return decision
        left = None if deadline is None else deadline - limit_set.clock.monotonic()
        pause, held = _waits(limit_set, decision)
        soon = min(held, _LONGEST_PAUSE_FOR_HOLDS)
        pause = max(pause, soon if left is None or left <= 0 else min(soon, left))
        if left is not None and pause > left:
            return decision
        if waited:
            # Another caller took the room. Callers that were given the same time must spread.
            pause += random.uniform(0, limit_set.spacing(decision))  # noqa: S311 - no secret
            pause = pause if left is None else min(pause, left)
        waited = True
        yield Pause(pause)


def _take(limit_set: LimitSet, keys: Keys, n: int, least: int, permit: str) -> Steps[Decision]:
    names = limit_set.addresses.whole(keys)

    def call(now_ms: int) -> Call:
        words = limit_set.words(now_ms)
        return Call("limits_acquire", names, (limit_set.span, *words, permit, 0, n, least))

    if limit_set.aligned:
        now, *flat = yield from limit_set.ask(call)
    else:
        now, *flat = yield call(0)
    return limit_set.decision(now, flat, None, permit)


def _seconds(timeout: timedelta | float | None) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidValue("timeout", quoted(timeout), "None, a timedelta, or seconds from 0 on")
    return min(seconds, _LONGEST_TIMEOUT)


def has_holds(limit_set: LimitSet) -> bool:
    """Whether permits are holds, which must be renewed and ended."""
    return any(each.holds for each in limit_set.parts)


def _waits(limit_set: LimitSet, refused: Decision) -> tuple[float, float]:
    """Return how long a refusal lasts at least, in seconds, and how long for its holds at most.

    Holds may end before the time that their limit names.
    """
    seconds, held = 0.0, 0.0
    for each in refused.refusals:
        if limit_set.parts[each.place].holds:
            held = max(held, each.retry_after.total_seconds())
        else:
            seconds = max(seconds, each.retry_after.total_seconds())
    return seconds, held


def renew_every(limit_set: LimitSet) -> float:
    """How often holds should be renewed, in seconds."""
    return min(each.hold_ms for each in limit_set.parts if each.holds) / 3_000


def renew(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[bool]:
    """Renew the holds of one id; return False if one has ended."""
    holds = _that(limit_set, "holds", "a Concurrency")
    states = limit_set.addresses.states(limit_set.addresses.each(keys))
    lengths = [limit_set.parts[index].hold_ms for index in holds]
    args: list[str | int] = [checked(permit), *lengths]
    [done] = yield Call("limits_renew", [states[index] for index in holds], args)
    return done == 1


def end_holds(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[int]:
    """End the holds of one id; its other permits stay taken."""
    holds = _that(limit_set, "holds", "a Concurrency")
    states = limit_set.addresses.states(limit_set.addresses.each(keys))
    names = [states[index] for index in holds]
    [ended] = yield Call("limits_end_holds", names, (checked(permit),))
    return ended


def close(
    limit_set: LimitSet, keys: Keys, *, length: timedelta | None, until: datetime | None
) -> Steps[datetime]:
    """Close cool-downs; return until when they are closed."""
    indexes = _that(limit_set, "closes", "a CoolDown")
    if (length is None) == (until is None):
        raise InvalidValue("until", "not exactly one of length and until", "one of the two")
    if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
        raise InvalidValue("until", quoted(until), "an aware datetime")
    ms = 0
    if length is not None:
        ms = length_ms(length, "length", least=1, most=_LONGEST_CLOSED_MS)
    until_ms = 0 if until is None else max(0, to_ms(until))
    states = limit_set.addresses.states(limit_set.addresses.each(keys))
    [ends] = yield Call("limits_close", [states[index] for index in indexes], (ms, until_ms))
    return EPOCH + ends * MILLISECOND


def _that(limit_set: LimitSet, what: Literal["holds", "closes"], accepted: str) -> list[int]:
    found = [index for index, each in enumerate(limit_set.parts) if getattr(each, what)]
    if not found:
        raise InvalidValue("limits", f"none of them {what} anything", f"{accepted} among them")
    return found
