"""Limits on a client of ``redis.asyncio``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from redis.commands.core import AsyncScript

from dispatcher.errors import InvalidValue, LimitersUnavailable
from dispatcher.limiters import operations
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.base import translated
from dispatcher.limiters.decision import Decision
from dispatcher.limiters.direct import AsyncClient, AsyncDirect, Commands
from dispatcher.limiters.groups import Request, acquire_each
from dispatcher.limiters.limit_set import Call, LimitSet, Pause, Reply, Steps, checked, new_id
from dispatcher.limiters.limiter import as_reply, is_called_as

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)


class AsyncLimiter:
    """:class:`Limiter` for ``redis.asyncio``: the same methods, steps and scripts, awaited."""

    def __init__(self, client: AsyncClient, limit_set: LimitSet) -> None:
        self._client = client
        self._limit_set = limit_set
        self._scripts: dict[str, AsyncScript] = {}
        self._direct = AsyncDirect(client)
        self._commands = Commands(limit_set, self._registered("limits_acquire").sha)
        self._unfinished: set[asyncio.Task[None]] = set()

    async def acquire(
        self,
        keys: Keys,
        n: int = 1,
        *,
        permit: str | None = None,
        wait: bool = False,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - one interface for both
    ) -> Decision:
        """Take ``n`` permits from every limit, or none from any. See :meth:`Limiter.acquire`."""
        new = permit is None
        permit = new_id() if permit is None else checked(permit)
        if not wait and timeout is None:
            decision = await self._at_once(keys, n, permit, new=new)
            if decision is not None:
                return decision
        steps = operations.acquire(
            self._limit_set, keys, n, permit=permit, wait=wait, timeout=timeout
        )
        return await self._run(steps)

    async def acquire_up_to(self, keys: Keys, n: int, *, permit: str | None = None) -> Decision:
        """Take as many of ``n`` permits as every limit gives now; ``granted`` says how many."""
        return await self._run(operations.acquire_up_to(self._limit_set, keys, n, permit=permit))

    async def acquire_each(self, requests: Sequence[Request]) -> list[Decision]:
        """Take permits for a group, in order. See :meth:`Limiter.acquire_each`."""
        return await self._run(acquire_each(self._limit_set, requests))

    async def peek(self, keys: Keys, n: int = 1) -> Decision:
        """Return what ``acquire`` would answer now, without taking permits."""
        return await self._run(operations.peek(self._limit_set, keys, n))

    async def give_back(self, keys: Keys, permit: str) -> int:
        """Return the permits of one id. See :meth:`Limiter.give_back`."""
        return await self._run(operations.give_back(self._limit_set, keys, permit))

    async def reset(self, keys: Keys) -> None:
        """Forget all permits for ``keys``, and open what was closed."""
        await self._run(operations.reset(self._limit_set, keys))

    async def renew(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of one id; False when one has ended, and then none was renewed."""
        return await self._run(operations.renew(self._limit_set, keys, permit))

    async def end_holds(self, keys: Keys, permit: str) -> int:
        """End the holds of one id; other permits stay taken. Return how many ended."""
        return await self._run(operations.end_holds(self._limit_set, keys, permit))

    async def close(
        self, keys: Keys, length: timedelta | None = None, *, until: datetime | None = None
    ) -> datetime:
        """Close for a length from now or until an instant. See :meth:`Limiter.close`."""
        return await self._run(operations.close(self._limit_set, keys, length=length, until=until))

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
        steps = operations.enter(self._limit_set, keys, n, permit, wait=wait, timeout=timeout)
        try:
            decision = await self._run(steps)
        except asyncio.CancelledError:
            # The script may have run. A cancelled caller does not wait for Redis.
            self._apart(self._never_used(keys, permit))
            raise
        if not operations.has_holds(self._limit_set) or not decision.granted:
            yield decision
            return
        renewing = asyncio.create_task(self._keep_renewing(keys, permit))
        try:
            yield decision
        finally:
            renewing.cancel()
            await asyncio.shield(self._apart(self._end(keys, permit, renewing)))

    def limited(
        self,
        key: str | Callable[..., Keys],
        n: int = 1,
        *,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a coroutine function or an asynchronous generator.

        See :meth:`Limiter.limited`. Raises InvalidValue for a generator that is not asynchronous.
        """

        def block(*args: Any, **kwargs: Any) -> AbstractAsyncContextManager[Decision]:
            keys = key(*args, **kwargs) if callable(key) else key
            return self.permit(keys, n, wait=wait, timeout=timeout)

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with block(*args, **kwargs):
                    return await cast("Awaitable[Any]", function(*args, **kwargs))

            if is_called_as(function, inspect.isgeneratorfunction):
                accepted = "an asynchronous one, or a limiter on a client of redis"
                raise InvalidValue("function", "a generator that is not asynchronous", accepted)
            if is_called_as(function, inspect.isasyncgenfunction):
                return cast("Callable[P, T]", _generating(function, block))
            return cast("Callable[P, T]", limited)

        return decorate

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(())
                    continue
                try:
                    reply = await self._send(step)
                except LimitersUnavailable as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as done:
            answer: T = done.value
            return answer

    async def _at_once(self, keys: Keys, n: int, permit: str, *, new: bool) -> Decision | None:
        """Take permits by one packed command; None: it must be done by steps."""
        if not self._direct.open:
            return None
        command = self._commands.of(keys, n, permit, new=new)
        if command is None:
            return None
        try:
            with translated():
                reply = await self._direct.call(*command)
        except LimitersUnavailable as error:
            return self._limit_set.unknown(error, permit)
        return self._commands.decision(reply, permit)

    async def _send(self, call: Call) -> Reply:
        with translated():
            script = self._registered(call.script)
            return as_reply(await script(keys=call.keys, args=call.args))

    def _registered(self, script: str) -> AsyncScript:
        found = self._scripts.get(script)
        if found is None:
            found = self._client.register_script(self._limit_set.text(script))
            self._scripts[script] = found
        return found

    def _apart(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do work in a task of its own, which goes on when the present one is cancelled."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._unfinished.discard)
        return task

    async def _never_used(self, keys: Keys, permit: str) -> None:
        try:
            await self.give_back(keys, permit)
        except LimitersUnavailable as error:
            log.warning(
                "could not return the permits of a cancelled call, they stay counted: %s", error
            )

    async def _end(self, keys: Keys, permit: str, renewing: asyncio.Task[None]) -> None:
        await asyncio.wait([renewing])
        try:
            await self.end_holds(keys, permit)
        except LimitersUnavailable as error:
            log.warning("could not end a hold, it ends by itself: %s", error)

    async def _keep_renewing(self, keys: Keys, permit: str) -> None:
        while True:
            await asyncio.sleep(operations.renew_every(self._limit_set))
            try:
                if not await self.renew(keys, permit):
                    log.warning(
                        "a hold has ended before its block: the limit may be exceeded meanwhile"
                    )
                    return
            except LimitersUnavailable as error:
                log.warning("could not renew a hold, it may end before its block: %s", error)


def _generating(
    function: Callable[..., Any], block: Callable[..., AbstractAsyncContextManager[Decision]]
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
