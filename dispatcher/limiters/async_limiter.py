"""Limits on a client of ``redis.asyncio``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

import redis.asyncio
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from dispatcher.errors import LimitersUnavailable
from dispatcher.limiters import calls, holds
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.asking import Asking, Pause, Reply, Steps, Words, new_id
from dispatcher.limiters.base import translated
from dispatcher.limiters.decision import Decision
from dispatcher.limiters.groups import Request, acquire_each
from dispatcher.limiters.limiter import as_reply

T = TypeVar("T")
P = ParamSpec("P")
AsyncClient: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster

log = logging.getLogger(__name__)


class AsyncLimiter:
    """:class:`Limiter` for ``redis.asyncio``: the same methods, steps and scripts, awaited."""

    def __init__(self, client: AsyncClient, asking: Asking) -> None:
        self._client = client
        self._asking = asking
        self._scripts: dict[str, AsyncScript] = {}
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
        return await self._run(
            calls.acquire(self._asking, keys, n, permit=permit, wait=wait, timeout=timeout)
        )

    async def acquire_up_to(self, keys: Keys, n: int, *, permit: str | None = None) -> Decision:
        """Take as many of ``n`` permits as every limit gives now; ``granted`` says how many."""
        return await self._run(calls.acquire_up_to(self._asking, keys, n, permit=permit))

    async def acquire_each(self, requests: Sequence[Request]) -> list[Decision]:
        """Take permits for a group, in order. See :meth:`Limiter.acquire_each`."""
        return await self._run(acquire_each(self._asking, requests))

    async def peek(self, keys: Keys, n: int = 1) -> Decision:
        """Tell what ``acquire`` would answer now, without taking anything."""
        return await self._run(calls.peek(self._asking, keys, n))

    async def give_back(self, keys: Keys, permit: str) -> int:
        """Give the permits of one id back. See :meth:`Limiter.give_back`."""
        return await self._run(calls.give_back(self._asking, keys, permit))

    async def reset(self, keys: Keys) -> None:
        """Forget all that was taken for ``keys``, and open what was closed."""
        await self._run(calls.reset(self._asking, keys))

    async def renew(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of one id; False when one has ended, and then none was renewed."""
        return await self._run(holds.renew(self._asking, keys, permit))

    async def end_holds(self, keys: Keys, permit: str) -> int:
        """End the holds of one id; what other limits gave stays taken. Return how many ended."""
        return await self._run(holds.end_holds(self._asking, keys, permit))

    async def close(
        self, keys: Keys, length: timedelta | None = None, *, until: datetime | None = None
    ) -> datetime:
        """Close for a length from now or until an instant. See :meth:`Limiter.close`."""
        return await self._run(holds.close(self._asking, keys, length=length, until=until))

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

        Cancelled, it gives holds back, and also what it took for a block that has not begun.
        """
        permit = new_id()
        steps = calls.enter(self._asking, keys, n, permit, wait=wait, timeout=timeout)
        try:
            decision = await self._run(steps)
        except asyncio.CancelledError:
            # The script may have run. Whoever cancels does not wait for Redis.
            self._apart(self._never_used(keys, permit))
            raise
        if not holds.has_holds(self._asking):
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
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
        """Decorate a coroutine function. See :meth:`Limiter.limited`."""

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> T:
                keys = key(*args, **kwargs) if callable(key) else key
                async with self.permit(keys, n, wait=wait, timeout=timeout):
                    return await function(*args, **kwargs)

            return limited

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
                    reply = await self._send(step.script, step.keys, step.args)
                except LimitersUnavailable as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as done:
            answer: T = done.value
            return answer

    async def _send(self, script: str, keys: Sequence[str], args: Words) -> Reply:
        with translated():
            registered = self._scripts.get(script)
            if registered is None:
                registered = self._client.register_script(self._asking.text(script))
                self._scripts[script] = registered
            try:
                answer = await self._client.evalsha(registered.sha, len(keys), *keys, *args)
            except NoScriptError:
                answer = await registered(keys=keys, args=args)
            return as_reply(answer)

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
            log.warning("permits of a cancelled call were not given back: %s", error)

    async def _end(self, keys: Keys, permit: str, renewing: asyncio.Task[None]) -> None:
        await asyncio.wait([renewing])
        try:
            await self.end_holds(keys, permit)
        except LimitersUnavailable as error:
            log.warning("a hold was not given back and ends by itself: %s", error)

    async def _keep_renewing(self, keys: Keys, permit: str) -> None:
        while True:
            await asyncio.sleep(holds.renew_every(self._asking))
            try:
                if not await self.renew(keys, permit):
                    log.warning("a hold has ended before its block: others may have its place")
                    return
            except LimitersUnavailable as error:
                log.warning("a hold could not be renewed: %s", error)
