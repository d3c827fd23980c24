"""Awaited calls: a few threads make the synchronous ones.

There is one way to submit, and it is synchronous. A coroutine that waits for a thread costs the
loop next to nothing, and a twin of every room, kept in step by hand, would cost the promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from threading import Lock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dispatcher.errors import InvalidDraft

P = ParamSpec("P")
T = TypeVar("T")

_MOST = 8


class Threads:
    """At most eight threads, which begin with the first call; further calls wait for one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, made by one of the threads in the caller's context."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST, thread_name_prefix="dispatcher")
            made = self._pool.submit(copy_context().run, call)
        return await asyncio.wrap_future(made)

    def close(self) -> None:
        """Wait for the calls that were made, then end the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


class HasThreads(Protocol):
    """What has calls that can be awaited."""

    @property
    def _threads(self) -> Threads: ...


S = TypeVar("S", bound=HasThreads)


def awaited(
    call: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return ``call`` as one that is awaited: the same parameters, answer and errors.

    A caller's transaction cannot be joined from another thread: ``session`` raises InvalidDraft.
    """

    @wraps(call)
    async def waits(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("session") is not None:
            raise InvalidDraft(
                "session",
                "a transaction cannot be joined by a call that is awaited",
                "await session.run_sync(…) with submit, as docs/transactions.md shows",
            )
        return await self._threads.run(partial(call, self, *args, **kwargs))

    waits.__doc__ = f"Await :meth:`{getattr(call, '__name__', 'call')}`, made by a thread."
    return waits


def listed(call: Callable[P, Iterable[T]]) -> Callable[P, list[T]]:
    """Return ``call`` as one that reads its answer to the end, so that no caller has to."""

    @wraps(call)
    def reads(*args: P.args, **kwargs: P.kwargs) -> list[T]:
        return [*call(*args, **kwargs)]

    return reads
