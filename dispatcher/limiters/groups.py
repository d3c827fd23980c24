"""Permits for a group of requests, in one script or a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from dispatcher.errors import InvalidValue, LimitersUnavailable, quoted
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.base import check_permits
from dispatcher.limiters.decision import Decision, State
from dispatcher.limiters.limit_set import Call, LimitSet, Steps, checked, new_id

_MOST_IN_A_SCRIPT = 500
"""The most work of one script, but for a single request: requests, and single permits."""
_ANY = -1
_FIXED = 6  # integers for one request, before its refusals


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


class _Wanted(NamedTuple):
    """A valid request."""

    n: int
    permit: str
    keys: Sequence[str]
    chosen: tuple[int, ...]
    work: int


@dataclass
class _State:
    """One state and its part in the group so far."""

    index: int
    """Of its limit, among all."""
    ahead: int = 0
    """Permits for which requests were refused: they come before later ones."""
    left: int = _ANY
    """Permits that it still gives; those that become free are for requests refused before."""


@dataclass
class _Group:
    """A group that is asked for part by part."""

    limit_set: LimitSet
    states: dict[str, _State] = field(default_factory=dict)

    def acquire(self, wanted: Sequence[_Wanted]) -> Steps[list[Decision]]:
        """Take permits for some requests, in one script."""
        limit_set, some = self.limit_set, dict[str, int]()
        requests: list[str | int] = []
        asked = dict[str, list[int]]()
        for each in wanted:
            requests += (each.permit, 0, each.n, each.n, len(each.chosen))
            names = limit_set.addresses.states(each.keys, each.chosen)
            for index, name in zip(each.chosen, names, strict=True):
                self.states.setdefault(name, _State(index))
                requests.append(some.setdefault(name, len(some) + 1))
                asked.setdefault(name, []).append(each.n)
        states = [self.states[name] for name in some]
        parts = [limit_set.parts[state.index] for state in states]
        turns = [
            ceil((state.ahead + sum(n for n in asked[name] if n <= part.most)) / part.most)
            if part.aligned
            else 0
            for name, state, part in zip(some, states, parts, strict=True)
        ]
        so_far = [word for state in states for word in (state.ahead, state.left)]
        names = [*limit_set.addresses.permits(wanted[0].keys), *some]

        def call(now_ms: int) -> Call:
            words = limit_set.words_of(now_ms, parts, turns)
            return Call("limits_acquire", names, (limit_set.span, *words, *so_far, *requests))

        now, *flat = yield from limit_set.ask(call)
        decisions = [self._decision(now, each, flat) for each in wanted]
        for state, left in zip(states, flat, strict=True):
            state.left = left
        return decisions

    def _decision(self, now: int, wanted: _Wanted, flat: list[int]) -> Decision:
        """Read the decision at the begin of a reply, and remove it from the reply."""
        many = _FIXED + 2 * flat[_FIXED - 1]
        reply = flat[:many]
        del flat[:many]
        decision = self.limit_set.decision(now, reply, wanted.chosen, wanted.permit)
        names = self.limit_set.addresses.states(wanted.keys, wanted.chosen)
        for index, wait in zip(reply[_FIXED::2], reply[_FIXED + 1 :: 2], strict=True):
            if wait > 0 and decision.state is not State.OVERSIZED:
                self.states[names[index - 1]].ahead += wanted.n
        return decision


def acquire_each(limit_set: LimitSet, requests: Sequence[Request]) -> Steps[list[Decision]]:
    """Take permits for each of a group, in order."""
    wanted = [_wanted(limit_set, each) for each in requests]
    limit_set.addresses.check_group([each.keys for each in wanted])
    group, decisions = _Group(limit_set), list[Decision]()
    for some in _parts(wanted):
        try:
            decisions += yield from group.acquire(some)
        except LimitersUnavailable as error:
            rest = wanted[len(decisions) :]
            return decisions + [limit_set.unknown(error, each.permit) for each in rest]
    return decisions


def _wanted(limit_set: LimitSet, request: Request) -> _Wanted:
    chosen = _chosen(limit_set, request.limits)
    parts = [limit_set.parts[index] for index in chosen]
    check_permits(request.n, parts)
    return _Wanted(
        n=request.n,
        permit=new_id() if request.permit is None else checked(request.permit),
        keys=limit_set.addresses.each(request.keys, chosen),
        chosen=chosen,
        work=max(1, request.n if any(each.keeps_each for each in parts) else 1),
    )


def _parts(wanted: Sequence[_Wanted]) -> Iterator[Sequence[_Wanted]]:
    """Cut a group so that no script runs long."""
    start, work = 0, 0
    for index, each in enumerate(wanted):
        if work and work + each.work > _MOST_IN_A_SCRIPT:
            yield wanted[start:index]
            start, work = index, 0
        work += each.work
    if wanted:
        yield wanted[start:]


def _chosen(limit_set: LimitSet, limits: tuple[int, ...] | None) -> tuple[int, ...]:
    many = len(limit_set.parts)
    if limits is None:
        return tuple(range(many))
    if len(set(limits)) < len(limits) or not all(0 <= each < many for each in limits):
        raise InvalidValue("limits", quoted(limits), f"different indexes from 0 to {many - 1}")
    return limits
