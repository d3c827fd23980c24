"""Use a session of an event loop from a thread, and do what waits beside the loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from dispatcher.errors import InvalidDraft, StoreUnavailable, kind_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from dispatcher.store.outbox import Joinable

T = TypeVar("T")

_LOOK_SECONDS = 1.0
_ACCEPTED = "an AsyncSession or an AsyncConnection of SQLAlchemy"


class LoopSession:
    """An AsyncSession or AsyncConnection of the running loop, for a call in a thread.

    The call's statements run in the loop, one after the other. Raises InvalidDraft for anything
    else.
    """

    def __init__(self, session: object) -> None:
        self._session = _checked(session)
        self._loop = asyncio.get_running_loop()
        self._is_cancelled = False

    async def prepare(self, statements: Callable[[Joinable], object]) -> None:
        """Run statements on the synchronous side of the session, in the caller's own task."""
        await self._session.run_sync(statements)

    def run(self, statements: Callable[[Joinable], T]) -> T:
        """Run statements on the synchronous side of the session, from another thread.

        Raises StoreUnavailable where the caller was cancelled, or its loop has ended.
        """
        if self._is_cancelled:
            raise StoreUnavailable("the call was cancelled")
        running = self._session.run_sync(statements)
        try:
            answer = asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError:
            running.close()
            raise StoreUnavailable("the event loop of the session has ended") from None
        while not wait([answer], _LOOK_SECONDS).done:
            if self._loop.is_closed():
                raise StoreUnavailable("the event loop of the session has ended")
        try:
            return answer.result()
        except CancelledError:
            raise StoreUnavailable("the event loop of the session is ending") from None

    async def until_done(self, call: Future[T]) -> T:
        """Wait for the call. Cancelled, wait nevertheless: the session is the caller's afterwards.

        The call then runs no further statement. A message that it has inserted stays in the
        caller's transaction; without one its reservation goes back.
        """
        ended = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._is_cancelled = True
            while not (call.cancel() or ended.done()):
                try:
                    await asyncio.wait([ended])
                except asyncio.CancelledError:
                    continue
            raise


def beside_the_loop(work: Callable[[], T]) -> T:
    """Do work that waits for servers: where a session of an event loop calls, in a thread.

    Raises CancelledError where the task of the session is cancelled; the work is done all the same.
    """
    if "greenlet" not in sys.modules or not in_greenlet():
        return work()
    return await_only(asyncio.shield(asyncio.wrap_future(in_own_thread(work))))


def in_own_thread(work: Callable[[], T]) -> Future[T]:
    """Begin work of a caller's transaction in a new thread, in the context of the caller.

    In a bounded pool it could wait for work that waits for a lock of that transaction.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="dispatcher")
    running = thread.submit(copy_context().run, work)
    thread.shutdown(wait=False)  # it ends with the work
    return running


def _checked(session: object) -> AsyncSession | AsyncConnection:
    if any(kind.__module__.startswith("sqlalchemy.ext.asyncio") for kind in type(session).__mro__):
        from sqlalchemy.ext.asyncio import (  # noqa: PLC0415 - slow, and rarely needed
            AsyncConnection,
            AsyncSession,
        )

        if isinstance(session, AsyncConnection | AsyncSession):
            return session
    accepted = f"{_ACCEPTED}; with a Session or a Connection call submit"
    raise InvalidDraft("session", kind_of(session), accepted)
