"""The threads of the API and of the page: what runs in them waits for Redis or the database."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, TypeVarTuple
from weakref import ref

from dispatcher.client import Dispatcher, called, threads_of

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Threads:
    """At most ``most`` threads; closing the dispatcher waits for what runs in them.

    They are not those of anyio, which FastAPI uses: decision 0042 says why.
    """

    def __init__(self, dispatcher: Dispatcher, most: int) -> None:
        self._dispatcher, self._most = dispatcher, most
        self._executor = threads_of(dispatcher, most)

    async def run(self, act: Callable[[*Ts], T], *given: *Ts) -> T:
        """Return what ``act`` returns in a thread, in the context of the awaiting task.

        Where that task is cancelled, an ``act`` that runs goes on; one that waits for a thread is
        not called. Raises RuntimeError after the dispatcher was closed.
        """
        work = partial(copy_context().run, called, partial(act, *given))
        begin = get_running_loop().run_in_executor
        try:
            result = begin(self._executor, work)
        except RuntimeError:  # closed: the dispatcher of a Django project is built anew
            self._executor = threads_of(self._dispatcher, self._most)
            result = begin(self._executor, work)
        return await result

    def awaited(self, call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return ``call`` as a coroutine function with its signature, which runs it in a thread.

        It does not keep these threads: FastAPI keeps functions of applications that are gone.
        """
        threads = ref(self)

        @wraps(call)
        async def waits(*args: P.args, **kwargs: P.kwargs) -> T:
            if (found := threads()) is None:
                raise RuntimeError("the application is gone")
            return await found.run(partial(call, *args, **kwargs))

        return waits
