"""The threads that calls of the API run in: they wait for Redis and for the database."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Threads:
    """At most ``most`` threads, each started when it is needed.

    They are not anyio's, which take two more turns of the event loop and 60 more calls of functions
    for each call.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._executor = self._started()

    async def run(self, act: Callable[[*Ts], T], *given: *Ts) -> T:
        """Return what ``act`` returns in a thread, which has the context of the caller.

        Where the caller is cancelled, ``act`` goes on if it has begun.
        """
        work = partial(copy_context().run, partial(act, *given))
        return await get_running_loop().run_in_executor(self._executor, work)

    def awaited(self, call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return ``call`` as a coroutine function with its signature, which runs it in a thread."""

        @wraps(call)
        async def waits(*given: P.args, **named: P.kwargs) -> T:
            return await self.run(partial(call, *given, **named))

        return waits

    def drain(self) -> None:
        """Wait for all that has begun. Further calls are made as before."""
        ending, self._executor = self._executor, self._started()
        ending.shutdown()

    def _started(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._most, thread_name_prefix="dispatcher-api")
