"""Awaited calls, which run the synchronous ones in a few threads.

So the package has one implementation of each call, and no asynchronous copy beside it.
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
    """A pool of at most eight threads, started by the first call. Further calls queue."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread, in the caller's context, and return its result."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST, thread_name_prefix="dispatcher")
            made = self._pool.submit(copy_context().run, call)
        return await asyncio.wrap_future(made)

    def close(self) -> None:
        """Wait for the running and queued calls, then end the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


class HasThreads(Protocol):
    """An object with awaited calls."""

    @property
    def _threads(self) -> Threads: ...


S = TypeVar("S", bound=HasThreads)


def awaited(
    call: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return ``call`` as a coroutine function with the same parameters, result and errors.

    It raises InvalidDraft for a ``session``: a transaction cannot be joined from another thread.
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

    waits.__doc__ = f"Await :meth:`{getattr(call, '__name__', 'call')}`, which runs in a thread."
    return waits


def listed(call: Callable[P, Iterable[T]]) -> Callable[P, list[T]]:
    """Return ``call`` with its whole result as a list."""

    @wraps(call)
    def reads(*args: P.args, **kwargs: P.kwargs) -> list[T]:
        return [*call(*args, **kwargs)]

    return reads
