"""Sessions of an event loop, and work that must not hold the loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from dispatcher.errors import InvalidDraft, kind_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

T = TypeVar("T")

_ACCEPTED = "an AsyncSession or an AsyncConnection of SQLAlchemy"


def beside_the_loop(work: Callable[[], T], *, to_its_end: bool = False) -> T:
    """Do work that waits for servers: where a session of an event loop calls, in a thread.

    Raises CancelledError where its task is cancelled, at once or ``to_its_end``; it is done anyway.
    """
    if "greenlet" not in sys.modules or not in_greenlet():
        return work()
    # In a bounded pool it could wait for work that waits for a lock of the caller's transaction.
    thread = ThreadPoolExecutor(1, thread_name_prefix="dispatcher")
    running = thread.submit(copy_context().run, work)
    thread.shutdown(wait=False)  # it ends with the work
    return await_only(_done(running, to_its_end=to_its_end))


async def _done(work: Future[T], *, to_its_end: bool) -> T:
    running = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while to_its_end and not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


def session_of_loop(session: object) -> AsyncSession | AsyncConnection:
    if any(kind.__module__.startswith("sqlalchemy.ext.asyncio") for kind in type(session).__mro__):
        from sqlalchemy.ext.asyncio import (  # noqa: PLC0415 - slow, and rarely needed
            AsyncConnection,
            AsyncSession,
        )

        if isinstance(session, AsyncConnection | AsyncSession):
            return session
    accepted = f"{_ACCEPTED}; with a Session or a Connection call submit"
    raise InvalidDraft("session", kind_of(session), accepted)
