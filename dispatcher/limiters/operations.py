"""What limiters of both kinds do: coroutines that ask scripts, and sleep by the limiter's clock.

On a client of ``redis`` nothing that they await suspends them, so no event loop has to run them.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from math import ceil, inf
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from dispatcher.errors import InvalidValue, LimitersUnavailable, LimitReached, kind_of, quoted
from dispatcher.limiters.direct_calls import AsyncClient, Client
from dispatcher.limiters.limit_set import (
    Decision,
    Keys,
    LimitSet,
    OnError,
    Reply,
    State,
    Words,
    check_permits,
    checked,
    length_ms,
    new_id,
)
from dispatcher.times.send_time import from_ms, to_ms

if TYPE_CHECKING:
    from dispatcher.limiters.algorithms import Algorithm

T = TypeVar("T")
P = ParamSpec("P")

_LONGEST_TIMEOUT = 366 * 86_400.0
_REQUESTS = "Requests, in order"
_LONGEST_CLOSED_MS = 366 * 86_400_000
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_LONGEST_PAUSE_FOR_HOLDS = 0.1  # a hold may be returned long before it ends
_TRIES = 3
_MOST_IN_A_SCRIPT = 500
"""The most work of one script, but for a single request: requests, and single permits."""
_ANY = -1
_FIXED = 6  # integers for one request, before its refusals
_LOOK_UP, _PEEK = 0, 2  # what the script does about the id of a request

log = logging.getLogger(__name__)


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


class Operations(ABC):
    """What does not depend on the kind of the client."""

    def __init__(self, client: Client | AsyncClient, limit_set: LimitSet) -> None:
        self._client: Any = client
        self._limit_set = limit_set
        self._script = cache(lambda name: self._client.register_script(limit_set.text(name)))

    @property
    def limits(self) -> tuple[Algorithm, ...]:
        """The limits that are asked together, in order."""
        return self._limit_set.parts

    @property
    def on_error(self) -> OnError:
        """What happens where Redis does not answer: ``"raise"``, ``"unknown"`` or ``"allow"``."""
        return self._limit_set.on_error

    def limited(
        self,
        key: str | Callable[..., Keys],
        n: int = 1,
        *,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function: each call needs permits, as a block of ``permit`` does.

        ``key`` is the key, or a function that returns it for the arguments of the call. A generator
        takes its permits when it begins, and holds them until its end. A limiter on a client of
        ``redis.asyncio`` decorates what is awaited, any other one what is not. Raises InvalidValue.
        """
        limiter: Any = self

        def block(*args: Any, **kwargs: Any) -> Any:
            keys = key(*args, **kwargs) if callable(key) else key
            return limiter.permit(keys, n, wait=wait, timeout=timeout)

        return lambda function: self._decorated(function, block)

    @abstractmethod
    def _decorated(self, function: Callable[P, T], block: Callable[..., Any]) -> Callable[P, T]: ...

    @abstractmethod
    async def _call(self, command: Callable[..., Any], *words: Any) -> Reply: ...

    @abstractmethod
    async def _call_directly(self, key: str, n: int, permit: str, is_new: bool) -> Reply:
        """Return the reply of ``limits_acquire``; an empty or short one where it must be called."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    async def _acquire(
        self,
        keys: Keys,
        n: int,
        permit: str | None,
        wait: bool,
        timeout: timedelta | float | None,  # noqa: ASYNC109 - by the limiter's clock
    ) -> Decision:
        patience = _patience_of(wait, timeout)
        is_new = permit is None
        permit = new_id() if permit is None else checked(permit)
        try:
            if patience is None and type(keys) is str and keys.isascii() and permit.isascii():
                check_permits(n, self.limits)
                reply = await self._call_directly(keys, n, permit, is_new)
                if len(reply) > 1:
                    return self._limit_set.decision(reply[0], reply[1:], permit)
            return await self._take(keys, n, permit, patience)
        except LimitersUnavailable as error:
            return self._limit_set.unknown(error, permit)

    async def _enter(
        self,
        keys: Keys,
        n: int,
        permit: str,
        wait: bool,
        timeout: timedelta | float | None,  # noqa: ASYNC109 - by the limiter's clock
    ) -> Decision:
        """As ``acquire``, for a block that must not run without permits.

        Raises LimitReached, and LimitersUnavailable unless the policy is to allow.
        """
        patience = _patience_of(wait, timeout)
        try:
            decision = await self._take(keys, n, permit, patience)
        except LimitersUnavailable as error:
            if self.on_error == "unknown":
                raise
            return self._limit_set.unknown(error, permit)
        if not decision:
            raise LimitReached(
                limit=decision.refused_by or "",
                others=tuple(refusal.limit for refusal in decision.refusals[1:]),
                retry_after=decision.retry_after,
                reset_at=decision.reset_at,
                is_upper_bound=self.limits[decision.position].hold_ms > 0,
            )
        return decision

    async def _acquire_up_to(self, keys: Keys, n: int, permit: str | None) -> Decision:
        check_permits(n, self.limits, whole=False)
        permit = new_id() if permit is None else checked(permit)
        try:
            return await self._ask(keys, n, permit, least=min(n, 1))
        except LimitersUnavailable as error:
            return self._limit_set.unknown(error, permit)

    async def _peek(self, keys: Keys, n: int) -> Decision:
        check_permits(n, self.limits)
        try:
            return await self._ask(keys, n, "", least=n, mode=_PEEK)
        except LimitersUnavailable as error:
            return self._limit_set.unknown(error, "")

    async def _give_back(self, keys: Keys, permit: str) -> int:
        limit_set, names = self._limit_set, self._limit_set.key_names(keys)
        checked(permit)
        _, returned = await self._reply(
            "limits_give_back", names, lambda now: (limit_set.span, permit, *limit_set.words(now))
        )
        return returned

    async def _reset(self, keys: Keys) -> None:
        await self._call(self._client.delete, *self._limit_set.key_names(keys))

    async def _take(self, keys: Keys, n: int, permit: str, patience: float | None) -> Decision:
        check_permits(n, self.limits)
        if patience is None:
            return await self._ask(keys, n, permit, least=n)
        clock = self._limit_set.clock
        deadline = clock.monotonic() + patience
        waited = False
        while True:
            decision = await self._ask(keys, n, permit, least=n)
            if decision or decision.state is State.OVERSIZED:
                return decision
            left = deadline - clock.monotonic()
            pause, held = self._waits(decision)
            soon = min(held, _LONGEST_PAUSE_FOR_HOLDS)
            pause = max(pause, min(soon, left) if left > 0 else soon)
            if pause > left:
                return decision
            if waited:
                # Another caller took the room. Callers that were given the same time must spread.
                spacing = self.limits[decision.refusals[0].index].spacing_ms / 1_000
                pause = min(pause + random.uniform(0, spacing), left)  # noqa: S311 - no secret
            waited = True
            await self._sleep(pause)

    async def _ask(
        self, keys: Keys, n: int, permit: str, *, least: int, mode: int = _LOOK_UP
    ) -> Decision:
        """Ask for up to ``n`` permits, and for no fewer than are of use."""
        limit_set, names = self._limit_set, self._limit_set.key_names(keys)
        now, *reply = await self._reply(
            "limits_acquire",
            names,
            lambda now: (limit_set.span, *limit_set.words(now), permit, mode, n, least),
        )
        return limit_set.decision(now, reply, permit)

    async def _reply(
        self, script: str, names: Sequence[str], words: Callable[[int], Words]
    ) -> Reply:
        """Ask, and ask again with other calendar periods where the server's time needs them."""
        for _ in range(_TRIES):
            now_ms = self._limit_set.server_ms()
            reply = await self._call(self._script(script), names, words(now_ms))
            if len(reply) > 1:
                return reply
            self._limit_set.shift_ms += reply[0] - now_ms
        raise LimitersUnavailable("the clock of Redis or of this machine keeps jumping")

    def _waits(self, refused: Decision) -> tuple[float, float]:
        """Return how long a refusal lasts at least, in seconds, and how long for its holds at most.

        Holds may end before the time that their limit names.
        """
        seconds, held = 0.0, 0.0
        for refusal in refused.refusals:
            if self.limits[refusal.index].hold_ms:
                held = max(held, refusal.retry_after.total_seconds())
            else:
                seconds = max(seconds, refusal.retry_after.total_seconds())
        return seconds, held

    # Holds and cool-downs.

    async def _renew(self, keys: Keys, permit: str) -> bool:
        names = self._state_names(keys, "concurrency", "a Concurrency")
        lengths = [part.hold_ms for part in self.limits if part.hold_ms]
        script = self._script("limits_holds")
        [done] = await self._call(script, names, (checked(permit), *lengths))
        return done == 1

    async def _end_holds(self, keys: Keys, permit: str) -> int:
        names = self._state_names(keys, "concurrency", "a Concurrency")
        [ended] = await self._call(self._script("limits_holds"), names, (checked(permit),))
        return ended

    async def _close(
        self, keys: Keys, length: timedelta | None, until: datetime | None
    ) -> datetime:
        names = self._state_names(keys, "cool_down", "a CoolDown")
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
        [ends] = await self._call(self._script("limits_close"), names, (ms, until_ms))
        return from_ms(ends)

    def _state_names(self, keys: Keys, kind: str, accepted: str) -> list[str]:
        indexes = [index for index, part in enumerate(self.limits) if part.kind == kind]
        if not indexes:
            raise InvalidValue("limits", f"none of them is {accepted}", f"{accepted} among them")
        states = self._limit_set.state_names(self._limit_set.keys_of(keys))
        return [states[index] for index in indexes]

    # What blocks do about their permits. Redis may be away: then the log says so, and they go on.

    async def _keep(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of a block; return whether to go on with that."""
        with _logged("could not renew a hold, it may end before its block: %s"):
            if not await self._renew(keys, permit):
                log.warning("a hold has ended before its block: the limit may be exceeded")
                return False
        return True

    async def _leave(self, keys: Keys, permit: str) -> None:
        with _logged("could not end a hold, it ends by itself: %s"):
            await self._end_holds(keys, permit)

    async def _abandon(self, keys: Keys, permit: str) -> None:
        with _logged("could not return the permits of a cancelled call, they stay counted: %s"):
            await self._give_back(keys, permit)

    # Groups.

    async def _acquire_each(self, requests: Sequence[Request]) -> list[Decision]:
        if not isinstance(requests, Iterable):
            raise InvalidValue("requests", kind_of(requests), _REQUESTS)
        group = [self._checked(request) for request in requests]
        self._limit_set.check_group([request.keys for request in group])
        ahead, left, decisions = Counter[str](), dict[str, int](), list[Decision]()
        for part in _parts(group):
            try:
                decisions += await self._acquire_part(part, ahead, left)
            except LimitersUnavailable as error:
                rest = group[len(decisions) :]
                return decisions + [
                    self._limit_set.unknown(error, request.permit) for request in rest
                ]
        return decisions

    def _checked(self, request: Request) -> _CheckedRequest:
        if not isinstance(request, Request):
            raise InvalidValue("requests", f"one is {kind_of(request)}", _REQUESTS)
        number = len(self.limits)
        limits = tuple(range(number)) if request.limits is None else request.limits
        if len(set(limits)) < len(limits) or not all(0 <= index < number for index in limits):
            accepted = f"different indexes from 0 to {number - 1}"
            raise InvalidValue("limits", quoted(limits), accepted)
        parts = [self.limits[index] for index in limits]
        check_permits(request.n, parts)
        permit = new_id() if request.permit is None else checked(request.permit)
        keys = self._limit_set.keys_of(request.keys, limits)
        return _CheckedRequest(
            n=request.n,
            permit=permit,
            keys=keys,
            limits=limits,
            states=self._limit_set.state_names(keys, limits),
            work=max(1, request.n if any(part.keeps_each for part in parts) else 1),
        )

    async def _acquire_part(
        self, part: Sequence[_CheckedRequest], ahead: Counter[str], left: dict[str, int]
    ) -> list[Decision]:
        """Take permits for a part of a group, in one script.

        By the names of states: ``ahead`` counts the permits for which earlier requests were
        refused, which come before later ones; ``left`` is how many the group may still get, since
        those that become free are for requests refused before.
        """
        limit_set = self._limit_set
        limit_of = {
            state: self.limits[index]
            for request in part
            for index, state in zip(request.limits, request.states, strict=True)
        }
        due, number_of = ahead.copy(), dict(zip(limit_of, count(1)))
        words: list[str | int] = []
        for state in limit_of:
            words += (ahead[state], left.get(state, _ANY))
        for request in part:
            is_whole = len(request.limits) == len(self.limits)
            of = "" if is_whole else f",{','.join(str(index + 1) for index in request.limits)},"
            words += (request.permit, _LOOK_UP, request.n, request.n, of, len(request.limits))
            words += [number_of[state] for state in request.states]
            due.update(
                {state: request.n for state in request.states if request.n <= limit_of[state].most}
            )
        turns = [
            ceil(due[state] / limit.most) if limit.aligned else 0
            for state, limit in limit_of.items()
        ]
        key = next((request.keys[0] for request in part if request.keys), "")

        def words_at(now_ms: int) -> Words:
            of_limits = limit_set.words_of(now_ms, [*limit_of.values()], turns)
            return (limit_set.span, *of_limits, *words)

        names = [*limit_set.permit_names(key), *limit_of]
        now, *reply = await self._reply("limits_acquire", names, words_at)
        decisions, begin = list[Decision](), 0
        for request in part:
            refusals = begin + _FIXED
            end = refusals + 2 * reply[refusals - 1]
            decision = limit_set.decision(now, reply[begin:end], request.permit, request.limits)
            decisions.append(decision)
            for index, wait in zip(
                reply[refusals:end:2], reply[refusals + 1 : end : 2], strict=True
            ):
                if wait > 0 and decision.state is not State.OVERSIZED:
                    ahead[request.states[index - 1]] += request.n
            begin = end
        left.update(zip(limit_of, reply[begin:], strict=True))
        return decisions


def _patience_of(wait: bool, timeout: timedelta | float | None) -> float | None:
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


@contextmanager
def _logged(text: str) -> Iterator[None]:
    try:
        yield
    except LimitersUnavailable as error:
        log.warning(text, error)


def _parts(group: Sequence[_CheckedRequest]) -> Iterator[Sequence[_CheckedRequest]]:
    start, work = 0, 0
    for index, request in enumerate(group):
        if work and work + request.work > _MOST_IN_A_SCRIPT:
            yield group[start:index]
            start, work = index, 0
        work += request.work
    if group:
        yield group[start:]
