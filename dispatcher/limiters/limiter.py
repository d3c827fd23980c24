"""Limits on a client of ``redis`` or ``redis.asyncio``.

Each operation is one coroutine, which asks scripts, and sleeps by the limiter's clock. On a client
of ``redis`` nothing that it awaits suspends it, so no event loop has to run it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from itertools import count
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from dispatcher.errors import InvalidValue, LimitersUnavailable, LimitReached, kind_of, quoted
from dispatcher.limiters.direct_calls import AsyncClient, AsyncDirectCalls, Client, DirectCalls
from dispatcher.limiters.limit_set import (
    Decision,
    Keys,
    LimitSet,
    OnError,
    Reply,
    Request,
    State,
    Words,
    check_permits,
    checked,
    length_ms,
    new_id,
)
from dispatcher.redis import errors
from dispatcher.times.clock import SystemClock
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
_PEEK = ""  # the id of no permit: nothing is taken

log = logging.getLogger(__name__)

translated = errors.translated(lambda reason, **_: LimitersUnavailable(reason))
"""Raises LimitersUnavailable without a remedy, which names settings: not all callers have them."""


class _CheckedRequest(NamedTuple):
    n: int
    permit: str
    keys: Sequence[str]
    limits: tuple[int, ...]
    states: Sequence[str]
    work: int


class Operations(ABC):
    """What does not depend on the kind of the client."""

    _direct_calls: type[DirectCalls | AsyncDirectCalls]

    def __init__(self, client: Client | AsyncClient, limit_set: LimitSet) -> None:
        self._client: Any = client
        self._limit_set = limit_set
        self._script = cache(lambda name: self._client.register_script(limit_set.text(name)))
        self._direct: Any = self._direct_calls(
            client, limit_set, self._script("limits_acquire").sha
        )

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
    async def _call(self, command: Callable[..., Any], *words: Any) -> Any: ...

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    async def _acquire_block(
        self,
        keys: Keys,
        n: int,
        permit: str,
        wait: bool,
        timeout: timedelta | float | None,  # noqa: ASYNC109 - by the limiter's clock
    ) -> Decision:
        """As ``acquire``; raises LimitReached, and LimitersUnavailable unless the policy allows."""
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
            pause = self._pause_after(decision, left)
            if left <= 0 or pause > left:
                return decision
            if waited:
                # Another caller took the room. Callers that were given the same time must spread.
                spacing = self.limits[decision.refusals[0].index].spacing_ms / 1_000
                pause = min(pause + random.uniform(0, spacing), left)  # noqa: S311 - no secret
            waited = True
            await self._sleep(pause)

    async def _ask(self, keys: Keys, n: int, permit: str, *, least: int) -> Decision:
        limit_set, request = self._limit_set, (permit, n, least)
        if type(keys) is str and keys.isascii() and self._direct.open:
            reply = await self._call(self._direct.call, keys, request)
            if len(reply) > 1:  # else it must be called in the ordinary way
                return limit_set.decision(reply[0], reply[1:], permit)
        now, *reply = await self._reply("limits_acquire", limit_set.key_names(keys), request)
        return limit_set.decision(now, reply, permit)

    async def _answered(self, asking: Awaitable[Decision], permit: str) -> Decision:
        try:
            return await asking
        except LimitersUnavailable as error:
            return self._limit_set.unknown(error, permit)

    async def _reply(
        self,
        script: str,
        names: Sequence[str],
        request: Words,
        limits: Sequence[tuple[Algorithm, int]] | None = None,
    ) -> Reply:
        """Ask, and ask again with other calendar periods where the server's time needs them."""
        limit_set = self._limit_set
        for _ in range(_TRIES):
            now_ms = limit_set.server_ms()
            of_limits = (
                limit_set.words(now_ms) if limits is None else limit_set.words_of(now_ms, limits)
            )
            words = (limit_set.span, *of_limits, *request)
            reply: Reply = await self._call(self._script(script), names, words)
            if len(reply) > 1:
                return reply
            limit_set.shift_ms += reply[0] - now_ms
        raise LimitersUnavailable("the clock of Redis or of this machine keeps jumping")

    def _pause_after(self, refused: Decision, left: float) -> float:
        """Return after how many seconds to ask again. A hold may be returned before it ends."""
        return max(
            min(refusal.retry_after.total_seconds(), _LONGEST_PAUSE_FOR_HOLDS, left)
            if self.limits[refusal.index].hold_ms
            else refusal.retry_after.total_seconds()
            for refusal in refused.refusals
        )

    # Holds and cool-downs.

    async def _renew(self, keys: Keys, permit: str) -> bool:
        names = self._state_names(keys, "concurrency", "a Concurrency")
        lengths = [part.hold_ms for part in self.limits if part.hold_ms]
        script = self._script("limits_holds")
        renewed: int = await self._call(script, names, (checked(permit), *lengths))
        return renewed == 1

    async def _end_holds(self, keys: Keys, permit: str) -> int:
        names = self._state_names(keys, "concurrency", "a Concurrency")
        ended: int = await self._call(self._script("limits_holds"), names, (checked(permit),))
        return ended

    def _state_names(self, keys: Keys, kind: str, accepted: str) -> list[str]:
        indexes = [index for index, part in enumerate(self.limits) if part.kind == kind]
        if not indexes:
            raise InvalidValue("limits", f"none is {accepted}", f"{accepted} among the limits")
        states = self._limit_set.state_names(self._limit_set.keys_of(keys))
        return [states[index] for index in indexes]

    # What blocks do about their permits. Redis may be away: then the log says so, and they go on.

    async def _renew_block(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of a block; return whether to go on with that."""
        with _logged("could not renew a hold, it may end before its block: %s"):
            if not await self._renew(keys, permit):
                log.warning("a hold has ended before its block: the limit may be exceeded")
                return False
        return True

    async def _release_block(self, keys: Keys, permit: str) -> None:
        with _logged("could not end a hold, it ends by itself: %s"):
            await self._end_holds(keys, permit)

    # Groups.

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
        self, part: Sequence[_CheckedRequest], standings: dict[str, Sequence[int]]
    ) -> list[Decision]:
        """Take permits for a part of a group, in one script.

        ``standings`` are of states, by their names: for how many permits earlier requests were
        refused, which come before later ones; and how many the group may still get, since those
        that become free are for requests refused before.
        """
        limit_set = self._limit_set
        limit_of = {
            state: self.limits[index]
            for request in part
            for index, state in zip(request.limits, request.states, strict=True)
        }
        before = [standings.get(state, (0, limit.most)) for state, limit in limit_of.items()]
        due = Counter({state: ahead for state, (ahead, _) in zip(limit_of, before, strict=True)})
        number_of = dict(zip(limit_of, count(1)))
        requests = []
        for request in part:
            is_whole = len(request.limits) == len(self.limits)
            of = "" if is_whole else f",{','.join(str(index + 1) for index in request.limits)},"
            numbers = [number_of[state] for state in request.states]
            requests.append([request.permit, request.n, of, numbers])
            due.update(
                {state: request.n for state in request.states if request.n <= limit_of[state].most}
            )
        limits = [
            (limit, ceil(due[state] / limit.most) if limit.aligned else 0)
            for state, limit in limit_of.items()
        ]
        key = next((request.keys[0] for request in part if request.keys), "")
        names = [*limit_set.permit_names(key), *limit_of]
        text = json.dumps([before, requests])
        now, *replies, after = await self._reply("limits_acquire", names, (text,), limits)
        standings.update(zip(limit_of, after, strict=True))
        return [
            limit_set.decision(now, reply, request.permit, request.limits)
            for request, reply in zip(part, replies, strict=True)
        ]


def _at_once(
    operation: Callable[Concatenate[Limiter, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Limiter, P], T]:
    """Return a method for :class:`Limiter`: nothing that it awaits suspends it."""

    @wraps(operation)
    def call(self: Limiter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _done(operation(self, *args, **kwargs))

    return call


def _awaited(
    call: Callable[Concatenate[Limiter, P], T],
) -> Callable[Concatenate[AsyncLimiter, P], Coroutine[Any, Any, T]]:
    return cast("Any", call).__wrapped__  # type: ignore[no-any-return]


def _done(operation: Coroutine[Any, Any, T]) -> T:
    try:
        operation.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError("an operation on a client of redis was suspended")


class Limiter(Operations):
    """Answers "may this go now?" for one limit or several. Safe to share between threads.

    Made by ``on`` of a limit. ``keys`` names the user of the permits: one key for all limits, or
    a sequence with one for each. Every method raises InvalidValue for invalid arguments, before
    anything is sent, and LimitersUnavailable for a Redis that does not answer, unless
    ``on_error`` says that it answers with a decision. :class:`AsyncLimiter` is the same for
    ``redis.asyncio``.
    """

    _direct_calls = DirectCalls

    @_at_once
    async def acquire(
        self,
        keys: Keys,
        n: int = 1,
        *,
        permit: str | None = None,
        wait: bool = False,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - by the limiter's clock
    ) -> Decision:
        """Take ``n`` permits from every limit, or none from any.

        More than a limit ever gives at once is refused with the state ``oversized``; 0 is allowed
        and takes nothing. Of limits that keep each permit at most 1,000 can be asked for. Asked
        again under the same ``permit`` id while it is remembered, they are granted again and
        counted once; a hold that has ended since is taken anew, where there is room. With
        ``wait`` it returns when they are granted; with a ``timeout`` in seconds also as soon as it
        is certain that they will not be in time.
        """
        patience = _patience_of(wait, timeout)
        permit = new_id() if permit is None else checked(permit)
        return await self._answered(self._take(keys, n, permit, patience), permit)

    @_at_once
    async def acquire_up_to(self, keys: Keys, n: int, *, permit: str | None = None) -> Decision:
        """Take as many of ``n`` permits as every limit gives now; ``granted`` says how many."""
        check_permits(n, self.limits, whole=False)
        permit = new_id() if permit is None else checked(permit)
        return await self._answered(self._ask(keys, n, permit, least=min(n, 1)), permit)

    @_at_once
    async def acquire_each(self, requests: Sequence[Request]) -> list[Decision]:
        """Take permits for a group of requests, in order, each all or none.

        One script takes up to 500 requests; larger groups need several, and are decided as by one.
        Where Redis fails between them, granted permits stay taken. Granted requests count against
        later ones. Refused requests go before later refused ones: the ``retry_after`` of each is
        its own turn. Limiters need a ``tag`` for requests with several keys.
        """
        if not isinstance(requests, Iterable):
            raise InvalidValue("requests", kind_of(requests), _REQUESTS)
        group = [self._checked(request) for request in requests]
        self._limit_set.check_group([request.keys for request in group])
        standings, decisions = dict[str, Sequence[int]](), list[Decision]()
        for part in _parts(group):
            try:
                decisions += await self._acquire_part(part, standings)
            except LimitersUnavailable as error:
                rest = group[len(decisions) :]
                return decisions + [
                    self._limit_set.unknown(error, request.permit) for request in rest
                ]
        return decisions

    @_at_once
    async def peek(self, keys: Keys, n: int = 1) -> Decision:
        """Return what ``acquire`` would answer now, without taking permits."""
        check_permits(n, self.limits)
        return await self._answered(self._ask(keys, n, _PEEK, least=n), _PEEK)

    @_at_once
    async def give_back(self, keys: Keys, permit: str) -> int:
        """Return the permits of one id to all limits that can take them; return how many they were.

        0 when the id is not known (any more), was returned before, or belongs to a window that has
        ended. In each case the id is unknown afterwards: a request with it takes permits anew.
        """
        names = self._limit_set.key_names(keys)
        _, returned = await self._reply("limits_give_back", names, (checked(permit),))
        return int(returned)

    @_at_once
    async def reset(self, keys: Keys) -> None:
        """Forget all permits for ``keys``, and open what was closed."""
        await self._call(self._client.delete, *self._limit_set.key_names(keys))

    @_at_once
    async def renew(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of one id; False when one has ended, and then none was renewed."""
        return await self._renew(keys, permit)

    @_at_once
    async def end_holds(self, keys: Keys, permit: str) -> int:
        """End the holds of one id; other permits stay taken. Return how many ended."""
        return await self._end_holds(keys, permit)

    @_at_once
    async def close(
        self, keys: Keys, length: timedelta | None = None, *, until: datetime | None = None
    ) -> datetime:
        """Close for a length from now or until an instant; return until when it is closed.

        A later end that was set before stays.
        """
        names = self._state_names(keys, "cool_down", "a CoolDown")
        if (length is None) == (until is None):
            raise InvalidValue("until", "neither or both of length and until", "one of them")
        if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
            raise InvalidValue("until", quoted(until), "an aware datetime")
        ms = 0
        if length is not None:
            ms = length_ms(length, "length", least=1, most=_LONGEST_CLOSED_MS)
        if until is not None and until > _LATEST:
            raise InvalidValue("until", quoted(until), "a time before the year 9999")
        until_ms = 0 if until is None else max(0, to_ms(until))
        ends = await self._call(self._script("limits_close"), names, (ms, until_ms))
        return from_ms(ends)

    @contextmanager
    def permit(
        self,
        keys: Keys,
        n: int = 1,
        *,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Iterator[Decision]:
        """Run a block with permits, and never without.

        Raises LimitReached when there are none, and LimitersUnavailable for a Redis that does not
        answer, unless ``on_error`` allows what cannot be asked. Holds are renewed while the block
        runs and end with it; other permits stay taken, whatever the block raises.
        """
        permit = new_id()
        decision = _done(self._acquire_block(keys, n, permit, wait, timeout))
        if not self._limit_set.renew_every or not decision.granted:
            yield decision
            return
        ended = threading.Event()
        words = (keys, permit, ended)
        renewing = threading.Thread(target=self._keep_renewing, args=words, daemon=True)
        renewing.start()
        try:
            yield decision
        finally:
            ended.set()
            renewing.join()
            _done(self._release_block(keys, permit))

    def _decorated(self, function: Callable[P, T], block: Callable[..., Any]) -> Callable[P, T]:
        @wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            with block(*args, **kwargs):
                return function(*args, **kwargs)

        @wraps(function)
        def generating(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with block(*args, **kwargs):
                return (yield from cast("Any", function(*args, **kwargs)))

        if _is_called_as(function, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
            accepted = "one without async, or a limiter on a client of redis.asyncio"
            raise InvalidValue("function", "is an async function", accepted)
        if _is_called_as(function, inspect.isgeneratorfunction):
            return cast("Callable[P, T]", generating)
        return limited

    async def _call(self, command: Callable[..., Any], *words: Any) -> Any:
        with translated:
            return command(*words)

    async def _sleep(self, seconds: float) -> None:
        self._limit_set.clock.sleep(seconds)

    def _keep_renewing(self, keys: Keys, permit: str, ended: threading.Event) -> None:
        while not ended.wait(self._limit_set.renew_every):
            if not _done(self._renew_block(keys, permit)):
                return


class AsyncLimiter(Operations):
    """:class:`Limiter` for ``redis.asyncio``: the same methods, awaited."""

    _direct_calls = AsyncDirectCalls

    def __init__(self, client: AsyncClient, limit_set: LimitSet) -> None:
        super().__init__(client, limit_set)
        self._unfinished: set[asyncio.Task[None]] = set()

    acquire = _awaited(Limiter.acquire)
    acquire_up_to = _awaited(Limiter.acquire_up_to)
    acquire_each = _awaited(Limiter.acquire_each)
    peek = _awaited(Limiter.peek)
    give_back = _awaited(Limiter.give_back)
    reset = _awaited(Limiter.reset)
    renew = _awaited(Limiter.renew)
    end_holds = _awaited(Limiter.end_holds)
    close = _awaited(Limiter.close)

    @asynccontextmanager
    async def permit(
        self,
        keys: Keys,
        n: int = 1,
        *,
        wait: bool = False,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - one interface for both
    ) -> AsyncIterator[Decision]:
        """Run a block with permits. See :meth:`Limiter.permit`.

        Cancelled, it ends holds, and returns permits that it took for a block that has not begun.
        """
        permit = new_id()
        try:
            decision = await self._acquire_block(keys, n, permit, wait, timeout)
        except asyncio.CancelledError:
            # The script may have run. A cancelled caller does not wait for Redis.
            self._in_a_task(self._cancel_block(keys, permit))
            raise
        if not self._limit_set.renew_every or not decision.granted:
            yield decision
            return
        renewing = asyncio.create_task(self._keep_renewing(keys, permit))
        try:
            yield decision
        finally:
            renewing.cancel()
            await asyncio.shield(self._in_a_task(self._end_block(keys, permit, renewing)))

    def _decorated(self, function: Callable[P, T], block: Callable[..., Any]) -> Callable[P, T]:
        @wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with block(*args, **kwargs):
                return await cast("Awaitable[Any]", function(*args, **kwargs))

        if _is_called_as(function, inspect.isasyncgenfunction):
            return cast("Callable[P, T]", _generating(function, block))
        if not _is_called_as(inspect.unwrap(function), inspect.iscoroutinefunction):
            accepted = "one defined by async def, or a limiter on a client of redis"
            raise InvalidValue("function", "is not an async function", accepted)
        return cast("Callable[P, T]", limited)

    async def _call(self, command: Callable[..., Any], *words: Any) -> Any:
        with translated:
            return await command(*words)

    async def _sleep(self, seconds: float) -> None:
        """Wait by the clock; one that a test moves lets the others of its loop go on."""
        clock = self._limit_set.clock
        if isinstance(clock, SystemClock):
            await asyncio.sleep(seconds)
        else:
            clock.sleep(seconds)
            await asyncio.sleep(0)

    def _in_a_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do work in a task of its own, which goes on when the present one is cancelled."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._unfinished.discard)
        return task

    async def _cancel_block(self, keys: Keys, permit: str) -> None:
        with _logged("could not return the permits of a cancelled call, they stay counted: %s"):
            await self.give_back(keys, permit)

    async def _end_block(self, keys: Keys, permit: str, renewing: asyncio.Task[None]) -> None:
        await asyncio.wait([renewing])
        await self._release_block(keys, permit)

    async def _keep_renewing(self, keys: Keys, permit: str) -> None:
        goes_on = True
        while goes_on:
            await asyncio.sleep(self._limit_set.renew_every)
            goes_on = await self._renew_block(keys, permit)


def _generating(
    function: Callable[..., Any], block: Callable[..., Any]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an asynchronous generator whose whole run is a block."""

    @wraps(function)
    async def generating(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with block(*args, **kwargs), aclosing(function(*args, **kwargs)) as items:
            step = items.asend(None)
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    return
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - it is for the body
                    step = items.athrow(error)
                else:
                    step = items.asend(sent)

    return generating


def _is_called_as(function: object, *kinds: Callable[[Any], bool]) -> bool:
    return any(kind(function) or kind(getattr(function, "__call__", None)) for kind in kinds)  # noqa: B004 - asks of which kind it is


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
