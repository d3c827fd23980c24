"""The operations of a set of limits, as steps that the limiters of both kinds of client run.

An operation is a generator: it yields a :class:`ScriptCall`, a :class:`PlainCall` or seconds to
sleep, is sent the reply, and returns the answer.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil, inf
from typing import NamedTuple

from dispatcher.errors import InvalidValue, LimitersUnavailable, LimitReached, kind_of, quoted
from dispatcher.limiters.decision import Decision, State
from dispatcher.limiters.limit_set import (
    Keys,
    LimitSet,
    PlainCall,
    ScriptCall,
    Steps,
    check_permits,
    checked,
    length_ms,
    new_id,
)
from dispatcher.times.send_time import from_ms, to_ms

_LONGEST_TIMEOUT = 366 * 86_400.0
_REQUESTS = "Requests, in order"
_LONGEST_CLOSED_MS = 366 * 86_400_000
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST_PAUSE_FOR_HOLDS = 0.1  # a hold may be returned long before it ends
_MOST_IN_A_SCRIPT = 500
"""The most work of one script, but for a single request: requests, and single permits."""
_ANY = -1
_FIXED = 6  # integers for one request, before its refusals
_LOOK_UP, _PEEK = 0, 2  # what the script does about the id of a request

log = logging.getLogger(__name__)


def patience_of(wait: bool, timeout: timedelta | float | None) -> float | None:
    """Return for how many seconds a call waits, None if it asks once. Raises InvalidValue."""
    if not wait:
        if timeout is not None:
            raise InvalidValue("timeout", "given without wait=True", "None, or wait=True")
        return None
    if timeout is None:
        return inf
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidValue("timeout", quoted(timeout), "None, a timedelta, or seconds from 0 on")
    return min(seconds, _LONGEST_TIMEOUT)


def acquire(
    limit_set: LimitSet, keys: Keys, n: int, permit: str | None, patience: float | None
) -> Steps[Decision]:
    is_new = permit is None
    permit = new_id() if permit is None else checked(permit)
    try:
        if patience is None and type(keys) is str and keys.isascii() and permit.isascii():
            check_permits(n, limit_set.parts)
            reply = yield PlainCall(keys, n, permit, is_new)
            if len(reply) > 1:
                return limit_set.decision(reply[0], reply[1:], permit)
        return (yield from _acquire(limit_set, keys, n, permit, patience))
    except LimitersUnavailable as error:
        return limit_set.unknown(error, permit)


def enter(
    limit_set: LimitSet, keys: Keys, n: int, permit: str, patience: float | None
) -> Steps[Decision]:
    """As ``acquire``, for a block that must not run without permits.

    Raises LimitReached, and LimitersUnavailable unless the policy is to allow.
    """
    try:
        decision = yield from _acquire(limit_set, keys, n, permit, patience)
    except LimitersUnavailable as error:
        if limit_set.on_error == "unknown":
            raise
        return limit_set.unknown(error, permit)
    if not decision:
        raise LimitReached(
            limit=decision.refused_by or "",
            others=tuple(refusal.limit for refusal in decision.refusals[1:]),
            retry_after=decision.retry_after,
            reset_at=decision.reset_at,
            is_upper_bound=limit_set.parts[decision.position].hold_ms > 0,
        )
    return decision


def acquire_up_to(
    limit_set: LimitSet, keys: Keys, n: int, *, permit: str | None
) -> Steps[Decision]:
    check_permits(n, limit_set.parts, whole=False)
    permit = new_id() if permit is None else checked(permit)
    try:
        return (yield from _ask(limit_set, keys, n, permit, least=min(n, 1)))
    except LimitersUnavailable as error:
        return limit_set.unknown(error, permit)


def peek(limit_set: LimitSet, keys: Keys, n: int) -> Steps[Decision]:
    check_permits(n, limit_set.parts)
    try:
        return (yield from _ask(limit_set, keys, n, "", least=n, mode=_PEEK))
    except LimitersUnavailable as error:
        return limit_set.unknown(error, "")


def give_back(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[int]:
    names = limit_set.key_names(keys)
    checked(permit)

    def call(now_ms: int) -> ScriptCall:
        return ScriptCall(
            "limits_give_back", names, (limit_set.span, permit, *limit_set.words(now_ms))
        )

    _, returned = yield from limit_set.ask(call)
    return returned


def reset(limit_set: LimitSet, keys: Keys) -> Steps[None]:
    yield ScriptCall("limits_reset", limit_set.key_names(keys), ())


def _acquire(
    limit_set: LimitSet, keys: Keys, n: int, permit: str, patience: float | None
) -> Steps[Decision]:
    check_permits(n, limit_set.parts)
    if patience is None:
        return (yield from _ask(limit_set, keys, n, permit, least=n))
    deadline = limit_set.clock.monotonic() + patience
    waited = False
    while True:
        decision = yield from _ask(limit_set, keys, n, permit, least=n)
        if decision or decision.state is State.OVERSIZED:
            return decision
        left = deadline - limit_set.clock.monotonic()
        pause, held = _waits(limit_set, decision)
        soon = min(held, _LONGEST_PAUSE_FOR_HOLDS)
        pause = max(pause, min(soon, left) if left > 0 else soon)
        if pause > left:
            return decision
        if waited:
            # Another caller took the room. Callers that were given the same time must spread.
            spacing = limit_set.parts[decision.refusals[0].index].spacing_ms / 1_000
            pause = min(pause + random.uniform(0, spacing), left)  # noqa: S311 - no secret
        waited = True
        yield pause


def _ask(
    limit_set: LimitSet, keys: Keys, n: int, permit: str, *, least: int, mode: int = _LOOK_UP
) -> Steps[Decision]:
    """Ask for up to ``n`` permits, and for no fewer than are of use."""
    names = limit_set.key_names(keys)

    def call(now_ms: int) -> ScriptCall:
        words = limit_set.words(now_ms)
        return ScriptCall("limits_acquire", names, (limit_set.span, *words, permit, mode, n, least))

    now, *reply = yield from limit_set.ask(call)
    return limit_set.decision(now, reply, permit)


def _waits(limit_set: LimitSet, refused: Decision) -> tuple[float, float]:
    """Return how long a refusal lasts at least, in seconds, and how long for its holds at most.

    Holds may end before the time that their limit names.
    """
    seconds, held = 0.0, 0.0
    for refusal in refused.refusals:
        if limit_set.parts[refusal.index].hold_ms:
            held = max(held, refusal.retry_after.total_seconds())
        else:
            seconds = max(seconds, refusal.retry_after.total_seconds())
    return seconds, held


# Holds and cool-downs.


def renew(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[bool]:
    names = _state_names(limit_set, keys, "concurrency", "a Concurrency")
    lengths = [part.hold_ms for part in limit_set.parts if part.hold_ms]
    [done] = yield ScriptCall("limits_renew", names, (checked(permit), *lengths))
    return done == 1


def end_holds(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[int]:
    names = _state_names(limit_set, keys, "concurrency", "a Concurrency")
    [ended] = yield ScriptCall("limits_end_holds", names, (checked(permit),))
    return ended


def close(
    limit_set: LimitSet, keys: Keys, *, length: timedelta | None, until: datetime | None
) -> Steps[datetime]:
    names = _state_names(limit_set, keys, "cool_down", "a CoolDown")
    if (length is None) == (until is None):
        raise InvalidValue("until", "not exactly one of length and until", "one of the two")
    if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
        raise InvalidValue("until", quoted(until), "an aware datetime")
    ms = 0
    if length is not None:
        ms = length_ms(length, "length", least=1, most=_LONGEST_CLOSED_MS)
    if until is not None and until > _LATEST:
        raise InvalidValue("until", quoted(until), "a time before the year 9999")
    until_ms = 0 if until is None else max(0, to_ms(until))
    [ends] = yield ScriptCall("limits_close", names, (ms, until_ms))
    return from_ms(ends)


def _state_names(limit_set: LimitSet, keys: Keys, kind: str, accepted: str) -> list[str]:
    indexes = [index for index, part in enumerate(limit_set.parts) if part.kind == kind]
    if not indexes:
        raise InvalidValue("limits", f"none of them is {accepted}", f"{accepted} among them")
    states = limit_set.state_names(limit_set.keys_of(keys))
    return [states[index] for index in indexes]


# What blocks do about their permits. Redis may be away: then the log says so, and they go on.


@contextmanager
def _logged(text: str) -> Iterator[None]:
    try:
        yield
    except LimitersUnavailable as error:
        log.warning(text, error)


def keep(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[bool]:
    """Renew the holds of a block; return whether to go on with that."""
    with _logged("could not renew a hold, it may end before its block: %s"):
        if not (yield from renew(limit_set, keys, permit)):
            log.warning("a hold has ended before its block: the limit may be exceeded meanwhile")
            return False
    return True


def leave(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[None]:
    with _logged("could not end a hold, it ends by itself: %s"):
        yield from end_holds(limit_set, keys, permit)


def abandon(limit_set: LimitSet, keys: Keys, permit: str) -> Steps[None]:
    with _logged("could not return the permits of a cancelled call, they stay counted: %s"):
        yield from give_back(limit_set, keys, permit)


# Groups.


@dataclass(frozen=True, slots=True)
class Request:
    """One of a group of requests: ``n`` permits for ``keys``, from some of the limits.

    ``limits`` says which, by their indexes from 0; None means all. ``keys`` is one key for all of
    these, or one for each. ``permit`` is an id of the caller's own; asked for again under the same
    id, the permits are granted again and not counted twice.
    """

    keys: Keys
    n: int = 1
    permit: str | None = None
    limits: tuple[int, ...] | None = None


class _CheckedRequest(NamedTuple):
    n: int
    permit: str
    keys: Sequence[str]
    limits: tuple[int, ...]
    states: Sequence[str]
    work: int


def acquire_each(limit_set: LimitSet, requests: Sequence[Request]) -> Steps[list[Decision]]:
    if not isinstance(requests, Iterable):
        raise InvalidValue("requests", kind_of(requests), _REQUESTS)
    group = [_checked(limit_set, request) for request in requests]
    limit_set.check_group([request.keys for request in group])
    ahead, left, decisions = Counter[str](), dict[str, int](), list[Decision]()
    for part in _parts(group):
        try:
            decisions += yield from _acquire_part(limit_set, part, ahead, left)
        except LimitersUnavailable as error:
            rest = group[len(decisions) :]
            return decisions + [limit_set.unknown(error, request.permit) for request in rest]
    return decisions


def _checked(limit_set: LimitSet, request: Request) -> _CheckedRequest:
    if not isinstance(request, Request):
        raise InvalidValue("requests", f"one is {kind_of(request)}", _REQUESTS)
    number = len(limit_set.parts)
    limits = tuple(range(number)) if request.limits is None else request.limits
    if len(set(limits)) < len(limits) or not all(0 <= index < number for index in limits):
        accepted = f"different indexes from 0 to {number - 1}"
        raise InvalidValue("limits", quoted(limits), accepted)
    parts = [limit_set.parts[index] for index in limits]
    check_permits(request.n, parts)
    permit = new_id() if request.permit is None else checked(request.permit)
    keys = limit_set.keys_of(request.keys, limits)
    return _CheckedRequest(
        n=request.n,
        permit=permit,
        keys=keys,
        limits=limits,
        states=limit_set.state_names(keys, limits),
        work=max(1, request.n if any(part.keeps_each for part in parts) else 1),
    )


def _parts(group: Sequence[_CheckedRequest]) -> Iterator[Sequence[_CheckedRequest]]:
    start, work = 0, 0
    for index, request in enumerate(group):
        if work and work + request.work > _MOST_IN_A_SCRIPT:
            yield group[start:index]
            start, work = index, 0
        work += request.work
    if group:
        yield group[start:]


def _acquire_part(
    limit_set: LimitSet,
    part: Sequence[_CheckedRequest],
    ahead: Counter[str],
    left: dict[str, int],
) -> Steps[list[Decision]]:
    """Take permits for a part of a group, in one script.

    By the names of states: ``ahead`` counts the permits for which earlier requests were refused,
    which come before later ones; ``left`` is how many the group may still get, since those that
    become free are for requests refused before.
    """
    limit_of = {
        state: limit_set.parts[index]
        for request in part
        for index, state in zip(request.limits, request.states, strict=True)
    }
    due, number_of = ahead.copy(), dict(zip(limit_of, count(1)))
    words: list[str | int] = []
    for state in limit_of:
        words += (ahead[state], left.get(state, _ANY))
    for request in part:
        is_whole = len(request.limits) == len(limit_set.parts)
        of = "" if is_whole else f",{','.join(str(index + 1) for index in request.limits)},"
        words += (request.permit, _LOOK_UP, request.n, request.n, of, len(request.limits))
        words += [number_of[state] for state in request.states]
        due.update(
            {state: request.n for state in request.states if request.n <= limit_of[state].most}
        )
    turns = [
        ceil(due[state] / limit.most) if limit.aligned else 0 for state, limit in limit_of.items()
    ]
    key = next((request.keys[0] for request in part if request.keys), "")
    names = [*limit_set.permit_names(key), *limit_of]

    def call(now_ms: int) -> ScriptCall:
        of_limits = limit_set.words_of(now_ms, [*limit_of.values()], turns)
        return ScriptCall("limits_acquire", names, (limit_set.span, *of_limits, *words))

    now, *reply = yield from limit_set.ask(call)
    decisions, begin = list[Decision](), 0
    for request in part:
        refusals = begin + _FIXED
        end = refusals + 2 * reply[refusals - 1]
        decision = limit_set.decision(now, reply[begin:end], request.permit, request.limits)
        decisions.append(decision)
        for index, wait in zip(reply[refusals:end:2], reply[refusals + 1 : end : 2], strict=True):
            if wait > 0 and decision.state is not State.OVERSIZED:
                ahead[request.states[index - 1]] += request.n
        begin = end
    left.update(zip(limit_of, reply[begin:], strict=True))
    return decisions
