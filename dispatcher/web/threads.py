"""The threads of the API and of the page: what runs in them waits for Redis or the database."""

from __future__ import annotations

from asyncio import wrap_future
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Any, TypeVar, TypeVarTuple

from dispatcher.client import Dispatcher, called, threads_of
from dispatcher.forks import renew_after_fork

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Threads:
    """At most ``most`` threads; closing the dispatcher waits for what runs in them.

    They are not those of anyio, which FastAPI uses: decision 0042 says why.
    """

    def __init__(self, dispatcher: Dispatcher, most: int) -> None:
        self._dispatcher, self._most = dispatcher, most
        self._renew()
        renew_after_fork(self, type(self)._renew)

    def _renew(self) -> None:
        """Begin without threads, which the first call gets; a forked child begins so, too."""
        self._executor = ThreadPoolExecutor(1)
        self._executor.shutdown()

    async def run(self, act: Callable[[*Ts], T], *given: *Ts) -> T:
        """Return what ``act`` returns in a thread, in the context of the awaiting task.

        Where that task is cancelled, an ``act`` that runs goes on; one that waits for a thread is
        not called. Raises RuntimeError after the dispatcher was closed.
        """
        work = partial(copy_context().run, called, partial(act, *given))
        return await wrap_future(self._submit(work))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._executor.submit(work)
        except RuntimeError:  # none yet; or closed, and a Django project's dispatcher built anew
            self._executor = threads_of(self._dispatcher, self._most)
            return self._executor.submit(work)


class SharedThreads(Threads):
    """Threads for long calls, which names share: one name has at most ``most_of_one`` of them.

    Names that wait take turns, whatever number of calls each has.
    """

    def __init__(self, dispatcher: Dispatcher, most: int, *, most_of_one: int) -> None:
        self._most_of_one = most_of_one
        super().__init__(dispatcher, most)

    def _renew(self) -> None:
        super()._renew()
        self._lock = Lock()
        self._running = Counter[str]()
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}

    async def run_for(self, name: str, act: Callable[[*Ts], T], *given: *Ts) -> T:
        call = Future[T]()
        work = partial(copy_context().run, called, partial(act, *given))
        with self._lock:
            self._waiting.setdefault(name, deque()).append((call, work))
        self._begin()
        return await wrap_future(call)

    def _begin(self) -> None:
        with self._lock:
            for name in [*self._waiting]:
                if self._running.total() >= self._most:
                    return
                if self._running[name] >= self._most_of_one:
                    continue
                calls = self._waiting.pop(name)
                call, work = calls.popleft()
                if calls:
                    self._waiting[name] = calls
                self._running[name] += 1
                try:
                    self._submit(partial(self._run, name, call, work))
                except RuntimeError as error:  # closed
                    self._running -= Counter([name])
                    self._waiting.pop(name, None)
                    for each, _ in ((call, work), *calls):
                        if each.set_running_or_notify_cancel():
                            each.set_exception(error)

    def _run(self, name: str, call: Future[T], work: Callable[[], T]) -> None:
        try:
            if call.set_running_or_notify_cancel():
                call.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            call.set_exception(error)
        finally:
            with self._lock:
                self._running -= Counter([name])
            self._begin()
