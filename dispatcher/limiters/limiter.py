"""Limits on a client of ``redis``."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from redis.commands.core import Script

from dispatcher.errors import InvalidValue, LimitersUnavailable
from dispatcher.limiters import operations
from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.base import translated
from dispatcher.limiters.decision import Decision
from dispatcher.limiters.direct import Client, Commands, Direct
from dispatcher.limiters.groups import Request, acquire_each
from dispatcher.limiters.limit_set import Call, LimitSet, Pause, Reply, Steps, checked, new_id
from dispatcher.times.clock import Clock

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)


class Limiter:
    """Answers "may this go now?" for one limit or several. Safe to share between threads.

    Made by ``on`` of a limit. ``keys`` names the user of the permits: one key for all limits, or
    a sequence with one for each. Every method raises InvalidValue for invalid arguments, before
    anything is sent, and LimitersUnavailable for a Redis that does not answer, unless the policy
    is ``unknown`` and it answers with a decision. :class:`AsyncLimiter` is the same for
    ``redis.asyncio``.
    """

    def __init__(self, client: Client, limit_set: LimitSet, clock: Clock) -> None:
        self._client = client
        self._limit_set = limit_set
        self._clock = clock
        self._scripts: dict[str, Script] = {}
        self._direct = Direct(client)
        self._commands = Commands(limit_set, self._registered("limits_acquire").sha)

    def acquire(
        self,
        keys: Keys,
        n: int = 1,
        *,
        permit: str | None = None,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Decision:
        """Take ``n`` permits from every limit, or none from any.

        More than a limit ever gives at once is refused with the state ``oversized``; 0 is allowed
        and takes nothing. Of limits that keep each permit at most 10,000 can be asked for.

        Asked again under the same ``permit`` id while it is remembered, they are granted again
        and counted once; a hold that has ended since must be free again, and is taken anew.
        With ``wait`` it returns when they are granted; with a ``timeout`` in seconds also as
        soon as it is certain that they will not be in time.
        """
        new = permit is None
        permit = new_id() if permit is None else checked(permit)
        if not wait and timeout is None:
            decision = self._at_once(keys, n, permit, new=new)
            if decision is not None:
                return decision
        steps = operations.acquire(
            self._limit_set, keys, n, permit=permit, wait=wait, timeout=timeout
        )
        return self._run(steps)

    def acquire_up_to(self, keys: Keys, n: int, *, permit: str | None = None) -> Decision:
        """Take as many of ``n`` permits as every limit gives now; ``granted`` says how many."""
        return self._run(operations.acquire_up_to(self._limit_set, keys, n, permit=permit))

    def acquire_each(self, requests: Sequence[Request]) -> list[Decision]:
        """Take permits for a group of requests, in order, each all or none.

        One script takes up to 500 requests; larger groups need several, and are decided as by one.
        Where Redis fails between them, granted permits stay taken. Granted requests count against
        later ones. Refused requests go before later refused ones: the ``retry_after`` of each is
        its own turn. Limiters need a ``tag`` for requests with several keys.
        """
        return self._run(acquire_each(self._limit_set, requests))

    def peek(self, keys: Keys, n: int = 1) -> Decision:
        """Return what ``acquire`` would answer now, without taking permits."""
        return self._run(operations.peek(self._limit_set, keys, n))

    def give_back(self, keys: Keys, permit: str) -> int:
        """Return the permits of one id to all limits that can take them; return how many they were.

        0 when the id is not known (any more), was returned before, or belongs to a window that has
        ended. In each case the id is unknown afterwards: a request with it takes permits anew.
        """
        return self._run(operations.give_back(self._limit_set, keys, permit))

    def reset(self, keys: Keys) -> None:
        """Forget all permits for ``keys``, and open what was closed."""
        self._run(operations.reset(self._limit_set, keys))

    def renew(self, keys: Keys, permit: str) -> bool:
        """Renew the holds of one id; False when one has ended, and then none was renewed."""
        return self._run(operations.renew(self._limit_set, keys, permit))

    def end_holds(self, keys: Keys, permit: str) -> int:
        """End the holds of one id; other permits stay taken. Return how many ended."""
        return self._run(operations.end_holds(self._limit_set, keys, permit))

    def close(
        self, keys: Keys, length: timedelta | None = None, *, until: datetime | None = None
    ) -> datetime:
        """Close for a length from now or until an instant; return until when it is closed.

        Closed before for longer, it stays so.
        """
        return self._run(operations.close(self._limit_set, keys, length=length, until=until))

    @contextmanager
    def permit(
        self,
        keys: Keys,
        n: int = 1,
        *,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Iterator[Decision]:
        """Run a block with permits, and never without.

        Raises LimitReached when there are none, and LimitersUnavailable for a Redis that does not
        answer, whatever the policy.

        Holds are renewed while the block runs and end with it; other permits stay taken, whatever
        the block raises.
        """
        permit = new_id()
        steps = operations.enter(self._limit_set, keys, n, permit, wait=wait, timeout=timeout)
        decision = self._run(steps)
        if not operations.has_holds(self._limit_set) or not decision.granted:
            yield decision
            return
        ended = threading.Event()
        words = (keys, permit, ended)
        renewing = threading.Thread(target=self._keep_renewing, args=words, daemon=True)
        renewing.start()
        try:
            yield decision
        finally:
            ended.set()
            renewing.join()
            try:
                self.end_holds(keys, permit)
            except LimitersUnavailable as error:
                log.warning("could not end a hold, it ends by itself: %s", error)

    def limited(
        self,
        key: str | Callable[..., Keys],
        n: int = 1,
        *,
        wait: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function: each call needs permits, as a block of :meth:`permit` does.

        ``key`` is the key, or a function that returns it for the arguments of the call. A generator
        takes its permits when it begins, and holds them until its end. Raises InvalidValue for a
        function that must be awaited: that needs a limiter on a client of ``redis.asyncio``.
        """

        def block(*args: Any, **kwargs: Any) -> AbstractContextManager[Decision]:
            keys = key(*args, **kwargs) if callable(key) else key
            return self.permit(keys, n, wait=wait, timeout=timeout)

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> T:
                with block(*args, **kwargs):
                    return function(*args, **kwargs)

            @wraps(function)
            def generating(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
                with block(*args, **kwargs):
                    return (yield from cast("Any", function(*args, **kwargs)))

            if is_called_as(function, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
                accepted = "one that is not awaited, or a limiter on a client of redis.asyncio"
                raise InvalidValue("function", "it must be awaited", accepted)
            if is_called_as(function, inspect.isgeneratorfunction):
                return cast("Callable[P, T]", generating)
            return limited

        return decorate

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    self._clock.sleep(step.seconds)
                    step = steps.send(())
                    continue
                try:
                    reply = self._send(step)
                except LimitersUnavailable as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def _at_once(self, keys: Keys, n: int, permit: str, *, new: bool) -> Decision | None:
        """Take permits by one packed command; None: it must be done by steps."""
        if not self._direct.open:
            return None
        command = self._commands.of(keys, n, permit, new=new)
        if command is None:
            return None
        try:
            with translated():
                reply = self._direct.call(*command)
        except LimitersUnavailable as error:
            return self._limit_set.unknown(error, permit)
        return self._commands.decision(reply, permit)

    def _send(self, call: Call) -> Reply:
        with translated():
            return as_reply(self._registered(call.script)(keys=call.keys, args=call.args))

    def _registered(self, script: str) -> Script:
        found = self._scripts.get(script)
        if found is None:
            found = self._client.register_script(self._limit_set.text(script))
            self._scripts[script] = found
        return found

    def _keep_renewing(self, keys: Keys, permit: str, ended: threading.Event) -> None:
        while not ended.wait(operations.renew_every(self._limit_set)):
            try:
                if not self.renew(keys, permit):
                    log.warning(
                        "a hold has ended before its block: the limit may be exceeded meanwhile"
                    )
                    return
            except LimitersUnavailable as error:
                log.warning("could not renew a hold, it may end before its block: %s", error)


def is_called_as(function: object, *kinds: Callable[[Any], bool]) -> bool:
    """Whether a function, or an object that is called, is of one of the kinds of ``inspect``."""
    return any(kind(function) or kind(getattr(function, "__call__", None)) for kind in kinds)  # noqa: B004 - asks of which kind it is


def as_reply(answer: object) -> Reply:
    """Return the reply of a script: integers."""
    return answer if isinstance(answer, list) else (int(answer),)  # type: ignore[call-overload]  # redis-py types no replies of scripts
