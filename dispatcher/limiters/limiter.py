"""Limits on a client of ``redis`` or ``redis.asyncio``."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from dispatcher.errors import InvalidValue, LimitersUnavailable
from dispatcher.limiters.direct_calls import AsyncClient, AsyncDirectCalls, Client, DirectCalls
from dispatcher.limiters.limit_set import Decision, Keys, LimitSet, Reply, new_id
from dispatcher.limiters.operations import Operations, Request
from dispatcher.redis import errors
from dispatcher.times.clock import SystemClock

T = TypeVar("T")
P = ParamSpec("P")


translated = errors.translated(lambda reason, **_: LimitersUnavailable(reason))
"""Raises LimitersUnavailable for errors of redis-py.

Without their remedy: it speaks of settings, which not all callers have.
"""


class Limiter(Operations):
    """Answers "may this go now?" for one limit or several. Safe to share between threads.

    Made by ``on`` of a limit. ``keys`` names the user of the permits: one key for all limits, or
    a sequence with one for each. Every method raises InvalidValue for invalid arguments, before
    anything is sent, and LimitersUnavailable for a Redis that does not answer, unless
    ``on_error`` says that it answers with a decision. :class:`AsyncLimiter` is the same for
    ``redis.asyncio``.
    """

    def __init__(self, client: Client, limit_set: LimitSet) -> None:
        super().__init__(client, limit_set)
        self._direct = DirectCalls(client, limit_set, self._script("limits_acquire").sha)

    def acquire(
        self,
        keys: Keys,
        n: int = 1,
        *,
        permit: str | None = None,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Decision:
        """Take ``n`` permits from every limit, or none from any.

        More than a limit ever gives at once is refused with the state ``oversized``; 0 is allowed
        and takes nothing. Of limits that keep each permit at most 1,000 can be asked for. Asked
        again under the same ``permit`` id while it is remembered, they are granted again and
        counted once; a hold that has ended since must be free again, and is taken anew. With
        ``wait`` it returns when they are granted; with a ``timeout`` in seconds also as soon as it
        is certain that they will not be in time.
        """
        return self._run(self._acquire(keys, n, permit, wait, timeout))

    def acquire_up_to(self, keys: Keys, n: int, *, permit: str | None = None) -> Decision:
        """Take as many of ``n`` permits as every limit gives now; ``granted`` says how many."""
        return self._run(self._acquire_up_to(keys, n, permit))

    def acquire_each(self, requests: Sequence[Request]) -> list[Decision]:
        """Take permits for a group of requests, in order, each all or none.

        One script takes up to 500 requests; larger groups need several, and are decided as by one.
        Where Redis fails between them, granted permits stay taken. Granted requests count against
        later ones. Refused requests go before later refused ones: the ``retry_after`` of each is
        its own turn. Limiters need a ``tag`` for requests with several keys.
        """
        return self._run(self._acquire_each(requests))

    def peek(self, keys: Keys, n: int = 1) -> Decision:
        """Return what ``acquire`` would answer now, without taking permits."""
        return self._run(self._peek(keys, n))

    def give_back(self, keys: Keys, permit: str) -> int:
        """Return the permits of one id to all limits that can take them; return how many they were.

        0 when the id is not known (any more), was returned before, or belongs to a window that has
        ended. In each case the id is unknown afterwards: a request with it takes permits anew.
        """
        return self._run(self._give_back(keys, permit))

    def reset(self, keys: Keys) -> None:
        """Forget all permits for ``keys``, and open what was closed."""
        return self._run(self._reset(keys))

    def renew(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of one id; False when one has ended, and then none was renewed."""
        return self._run(self._renew(keys, permit))

    def end_holds(self, keys: Keys, permit: str) -> int:
        """End the holds of one id; other permits stay taken. Return how many ended."""
        return self._run(self._end_holds(keys, permit))

    def close(
        self, keys: Keys, length: timedelta | None = None, *, until: datetime | None = None
    ) -> datetime:
        """Close for a length from now or until an instant; return until when it is closed.

        Closed before for longer, it stays so.
        """
        return self._run(self._close(keys, length, until))

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
        decision = self._run(self._enter(keys, n, permit, wait, timeout))
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
            self._run(self._leave(keys, permit))

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
            accepted = "one that is not awaited, or a limiter on a client of redis.asyncio"
            raise InvalidValue("function", "it must be awaited", accepted)
        if _is_called_as(function, inspect.isgeneratorfunction):
            return cast("Callable[P, T]", generating)
        return limited

    def _run(self, operation: Coroutine[None, None, T]) -> T:
        try:
            operation.send(None)
        except StopIteration as done:
            answer: T = done.value
            return answer
        raise AssertionError("an operation on a client of redis was suspended")

    async def _call(self, command: Callable[..., Any], *words: Any) -> Reply:
        with translated:
            return _as_reply(command(*words))

    async def _call_directly(self, key: str, n: int, permit: str, is_new: bool) -> Reply:
        with translated:
            return self._direct.call(key, n, permit, is_new) if self._direct.open else ()

    async def _sleep(self, seconds: float) -> None:
        self._limit_set.clock.sleep(seconds)

    def _keep_renewing(self, keys: Keys, permit: str, ended: threading.Event) -> None:
        while not ended.wait(self._limit_set.renew_every):
            if not self._run(self._keep(keys, permit)):
                return


def _awaited(
    call: Callable[Concatenate[Limiter, P], T],
) -> Callable[Concatenate[AsyncLimiter, P], Coroutine[Any, Any, T]]:
    """Return a method for :class:`AsyncLimiter`, whose ``_run`` returns what is to be awaited."""

    @wraps(call)
    async def waits(self: AsyncLimiter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = await cast("Any", call)(self, *args, **kwargs)
        return answer

    return waits


class AsyncLimiter(Operations):
    """:class:`Limiter` for ``redis.asyncio``: the same methods, awaited."""

    def __init__(self, client: AsyncClient, limit_set: LimitSet) -> None:
        super().__init__(client, limit_set)
        self._direct = AsyncDirectCalls(client, limit_set, self._script("limits_acquire").sha)
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
            decision = await self._enter(keys, n, permit, wait, timeout)
        except asyncio.CancelledError:
            # The script may have run. A cancelled caller does not wait for Redis.
            self._apart(self._abandon(keys, permit))
            raise
        if not self._limit_set.renew_every or not decision.granted:
            yield decision
            return
        renewing = asyncio.create_task(self._keep_renewing(keys, permit))
        try:
            yield decision
        finally:
            renewing.cancel()
            await asyncio.shield(self._apart(self._end(keys, permit, renewing)))

    def _decorated(self, function: Callable[P, T], block: Callable[..., Any]) -> Callable[P, T]:
        @wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with block(*args, **kwargs):
                return await cast("Awaitable[Any]", function(*args, **kwargs))

        if _is_called_as(function, inspect.isasyncgenfunction):
            return cast("Callable[P, T]", _generating(function, block))
        if not _is_called_as(inspect.unwrap(function), inspect.iscoroutinefunction):
            accepted = "one defined by async def, or a limiter on a client of redis"
            raise InvalidValue("function", "it is not awaited", accepted)
        return cast("Callable[P, T]", limited)

    def _run(self, operation: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return operation

    async def _call(self, command: Callable[..., Any], *words: Any) -> Reply:
        with translated:
            return _as_reply(await command(*words))

    async def _call_directly(self, key: str, n: int, permit: str, is_new: bool) -> Reply:
        with translated:
            return await self._direct.call(key, n, permit, is_new) if self._direct.open else ()

    async def _sleep(self, seconds: float) -> None:
        """Wait by the clock; one that a test moves lets the others of its loop go on."""
        clock = self._limit_set.clock
        if isinstance(clock, SystemClock):
            await asyncio.sleep(seconds)
        else:
            clock.sleep(seconds)
            await asyncio.sleep(0)

    def _apart(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do work in a task of its own, which goes on when the present one is cancelled."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._unfinished.discard)
        return task

    async def _end(self, keys: Keys, permit: str, renewing: asyncio.Task[None]) -> None:
        await asyncio.wait([renewing])
        await self._leave(keys, permit)

    async def _keep_renewing(self, keys: Keys, permit: str) -> None:
        goes_on = True
        while goes_on:
            await asyncio.sleep(self._limit_set.renew_every)
            goes_on = await self._keep(keys, permit)


def _generating(
    function: Callable[..., Any], block: Callable[..., Any]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an asynchronous generator whose whole run is a block."""

    @wraps(function)
    async def generating(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with block(*args, **kwargs), aclosing(function(*args, **kwargs)) as given:
            step = given.asend(None)
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
                    step = given.athrow(error)
                else:
                    step = given.asend(sent)

    return generating


def _is_called_as(function: object, *kinds: Callable[[Any], bool]) -> bool:
    return any(kind(function) or kind(getattr(function, "__call__", None)) for kind in kinds)  # noqa: B004 - asks of which kind it is


def _as_reply(answer: Any) -> Reply:
    return answer if isinstance(answer, list) else (int(answer),)
