"""What bounds the calls of the API and of the page.

How many last as long as the caller listens or sends, and how many threads run them: what runs in
those waits for Redis or the database. And how often the figures of a page are read.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Semaphore, get_running_loop, wrap_future
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import partial
from math import inf
from threading import Lock, RLock
from typing import Generic, Literal, TypeVar, TypeVarTuple
from weakref import finalize

from anyio import move_on_after
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.client import Dispatcher, called, threads_of
from dispatcher.forks import renew_after_fork
from dispatcher.times.clock import SystemClock
from dispatcher.web.problems import Refused

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Kind = Literal["batches", "calls", "files", "listeners"]
MOST: dict[Kind, tuple[int, int, int, str]] = {
    "batches": (8, 32, 5, "batches"),
    "calls": (8, 32, 1, "long calls"),
    "files": (4, 8, 5, "uploads"),
    "listeners": (50, 200, 60, "listeners"),
}
"""The most of one key, the most in all, the seconds of Retry-After, and the word for errors."""
_CALL_SECONDS = 60.0
"""How long a long call may take until its answer is read."""
_PIECE_BYTES = 65_536
SECONDS = 2.0
"""How often the numbers of a page change at most."""
_PAUSE = 19
"""Ratio of the pause after a read to its length: each takes at most a twentieth of the time."""
_WAIT_SECONDS, _FIRST_WAIT_SECONDS = 0.1, 5.0
"""How long a visit waits for a new figure: with an old one to show, and without one."""


class Streams:
    def __init__(self) -> None:
        self._under_way: dict[Kind, Counter[str]] = {kind: Counter() for kind in MOST}
        self._lock = RLock()  # the collector may free a place while one is taken

    def take(self, kind: Kind, name: str) -> Callable[[], None]:
        """Take a place; return what frees it. Raises Refused."""
        taken, (of_one, in_all, seconds, words) = self._under_way[kind], MOST[kind]
        headers = {"Retry-After": f"{seconds}"}
        with self._lock:
            if taken[name] >= of_one:
                detail = f"this key has {of_one} {words} open, the most allowed"
                raise Refused(429, f"too-many-{kind}", detail, headers=headers)
            if taken.total() >= in_all:
                detail = f"this server has {in_all} {words} open, the most allowed"
                raise Refused(503, f"too-many-{kind}", detail, headers=headers)
            taken[name] += 1
        return partial(self._free, kind, name)

    def _free(self, kind: Kind, name: str) -> None:
        with self._lock:
            self._under_way[kind][name] -= 1

    async def within(self, name: str, app: ASGIApp, call: tuple[Scope, Receive, Send]) -> None:
        """Answer a long call in pieces: it has its place until a slow reader has them."""
        scope, receive, send = call
        began = False

        async def send_pieces(message: Message) -> None:
            nonlocal began
            began = True
            body = message.get("body", b"")
            while len(body) > _PIECE_BYTES:
                await send({**message, "body": body[:_PIECE_BYTES], "more_body": True})
                body = body[_PIECE_BYTES:]
            await send({**message, "body": body} if body else message)

        with ExitStack() as held, move_on_after(_CALL_SECONDS) as bound:
            held.callback(self.take("calls", name))
            await app(scope, receive, send_pieces)
        if bound.cancelled_caught and not began:
            detail = f"the call was not answered within {_CALL_SECONDS:g} s"
            raise Refused(503, "too-slow", detail, headers={"Retry-After": "5"})


class StreamedResponse(StreamingResponse):
    """The answer to a batch or a listener: it has a place while it lasts, or raises Refused.

    An answer that is never sent, because its call was cancelled before, gives its place back, too.
    The answer to a batch does not wait for the caller's disconnection, which is read where the
    lines are.
    """

    def __init__(
        self, kind: Kind, content: AsyncIterator[str], streams: Streams, name: str
    ) -> None:
        self._kind, self._free = kind, finalize(self, streams.take(kind, name))
        is_batch = kind == "batches"
        media_type = "application/x-ndjson" if is_batch else "text/event-stream"
        super().__init__(content, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._kind == "batches":
                await self.stream_response(send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._free()


class _Name:
    """Whose turns they are."""


class Threads:
    """At most ``most`` threads; closing the dispatcher waits for what runs in them.

    They are not those of anyio, which FastAPI uses: decision 0042 says why. Where names share them,
    one name has at most ``most_of_one`` of an event loop. Its other calls wait in the loop, so that
    those of all names take turns, whatever number each has.
    """

    def __init__(self, dispatcher: Dispatcher, most: int, *, most_of_one: int = 0) -> None:
        self._dispatcher, self._most, self._most_of_one = dispatcher, most, most_of_one
        self._names: defaultdict[str, _Name] = defaultdict(_Name)
        self._renew()
        renew_after_fork(self, Threads._renew)

    def _renew(self) -> None:
        self._executor = ThreadPoolExecutor(1)
        self._executor.shutdown()

    async def run(self, act: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Return what ``act`` returns in a thread, in the context of the awaiting task.

        Where that task is cancelled, an ``act`` that runs goes on; one that waits for a thread is
        not called. Raises RuntimeError after the dispatcher was closed.
        """
        return await wrap_future(self.submit(act, *arguments))

    def submit(self, act: Callable[[*Ts], T], *arguments: *Ts) -> Future[T]:
        work = partial(copy_context().run, called, partial(act, *arguments))
        try:
            return self._executor.submit(work)
        except RuntimeError:  # none yet; or closed, and a Django project's dispatcher built anew
            self._executor = threads_of(self._dispatcher, self._most)
            return self._executor.submit(work)

    async def run_for(self, name: str, act: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Return as :meth:`run`, in the turn of that name, which lasts until ``act`` has ended."""
        turn = self._dispatcher._turn(self._names[name], self._most_of_one)
        await turn.acquire()
        try:
            call = self.submit(act, *arguments)
        except BaseException:
            turn.release()
            raise
        call.add_done_callback(partial(_end, turn, get_running_loop()))
        return await wrap_future(call)


def _end(turn: Semaphore, loop: AbstractEventLoop, _: object) -> None:
    with suppress(RuntimeError):  # the loop is closed, and nothing waits
        loop.call_soon_threadsafe(turn.release)


class CachedRead(Generic[T]):
    """A value that is read once for all visitors, every two seconds at most.

    A visit does not wait for a long read: it is shown what was read before, which says when that
    was. Only the first visits of a process wait, for some seconds at most.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads, self._clock, self._lock = threads, SystemClock(), Lock()
        self._seen: T | None = None
        self._until = -inf
        self._under_way: Future[T] | None = None

    def of(self, read: Callable[[], T]) -> T:
        """Return what was read last. Raises as ``read``, and Refused before the first read ends."""
        with self._lock:
            if self._under_way is None and self._clock.monotonic() >= self._until:
                self._under_way = self._threads.submit(self._read, read)
            seen, coming = self._seen, self._under_way
        if coming is not None:
            with suppress(NotYet):
                return coming.result(_FIRST_WAIT_SECONDS if seen is None else _WAIT_SECONDS)
        if seen is None:
            detail = "the messages are being counted; look again in some seconds"
            raise Refused(503, "not-yet", detail, headers={"Retry-After": "2"})
        return seen

    def _read(self, read: Callable[[], T]) -> T:
        began = self._clock.monotonic()
        try:
            self._seen = read()
            return self._seen
        finally:
            with self._lock:
                now, self._under_way = self._clock.monotonic(), None
                if self._seen is not None:  # else the next visit begins another read at once
                    self._until = now + max(SECONDS, _PAUSE * (now - began))
