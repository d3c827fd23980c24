"""What limiters do while Redis does not answer: each process gives a share of the limits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from dispatcher.errors import InvalidValue, LimitersUnavailable, quoted
from dispatcher.limiters import operations
from dispatcher.limiters.limit_set import LimitSet, ScriptCall, Sleep, Steps
from dispatcher.redis.errors import is_pool_full
from dispatcher.redis.memory import MemoryRedis

T = TypeVar("T")
P = ParamSpec("P")
Operation = Callable[Concatenate[LimitSet, P], Steps[T]]

_RETRY_SECONDS = 1.0
"""How long a process decides by its share before one of its calls tries Redis again."""
_DECISIONS: tuple[object, ...] = (
    operations.acquire, operations.enter, operations.acquire_up_to, operations.acquire_each,
    operations.peek,
)  # fmt: skip
"""The operations that the share answers while Redis is away."""
_ON_PERMITS: dict[object, Callable[..., Steps[Any]]] = {
    operations.give_back: operations.give_back,
    operations.abandon: operations.give_back,
    operations.end_holds: operations.end_holds,
    operations.leave: operations.end_holds,
    operations.renew: operations.renew,
    operations.keep: operations.renew,
}
"""The operations on granted permits, and what the share does with permits that it granted."""
_ON_BOTH: tuple[object, ...] = (operations.reset, operations.close)
"""The operations that change the share and Redis."""

log = logging.getLogger(__name__)


class LocalShare:
    """A share of some limits, counted in the memory of this process.

    The share counts only the permits that it grants. It does not know those that Redis granted
    before, and Redis does not learn of the share's permits.
    """

    def __init__(self, limit_set: LimitSet, share: float | None) -> None:
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or share is None or not 0 < share <= 1:
            accepted = 'with on_error="local" a number above 0 and up to 1: 1 / number of processes'
            raise InvalidValue("share", quoted(share), accepted)
        self._limit_set = limit_set
        self._clock = limit_set.clock
        self._shared_set = limit_set.shared(share)
        self._memory = MemoryRedis(clock=self._clock)
        self._has_decided = False
        self._redis_is_away = False
        self._retry_at = 0.0

    def steps(self, operation: Operation[P, T], *args: P.args, **named: P.kwargs) -> Steps[T]:
        """Return the steps of an operation: on Redis, or on the share while Redis is away."""
        if operation in _ON_BOTH:
            yield from self._in_memory(operation, *args, **named)
        elif operation in _ON_PERMITS and self._has_decided:
            result = yield from self._in_memory(_ON_PERMITS[operation], *args, **named)
            if result:  # the share had granted these permits
                done: T = result
                return done
        if operation not in _DECISIONS:
            return (yield from operation(self._limit_set, *args, **named))
        if not self._redis_is_away or self._is_retry_due():
            began = self._clock.monotonic()
            try:
                decision = yield from operation(self._limit_set, *args, **named)
            except LimitersUnavailable as error:
                if is_pool_full(error):
                    raise
                self._note_failure(error)
                if named.get("timeout") is not None:  # part of it has passed
                    named["timeout"] = self._left(named["timeout"], began)
            else:
                self._note_answer()
                return decision
        return (yield from self._in_memory(operation, *args, **named))

    def _left(self, timeout: Any, began: float) -> float:
        """Return what is left of a timeout, in seconds."""
        seconds = operations.seconds_of(timeout) or 0.0
        return max(0.0, seconds - (self._clock.monotonic() - began))

    def _in_memory(self, operation: Operation[P, T], *args: P.args, **named: P.kwargs) -> Steps[T]:
        """Run an operation on the share: its scripts run in memory, its pauses are yielded."""
        steps = operation(self._shared_set, *args, **named)
        try:
            step = next(steps)
            while True:
                reply: Any = ()
                if isinstance(step, Sleep):
                    yield step
                elif isinstance(step, ScriptCall):
                    script = self._memory.register_script(self._shared_set.text(step.script))
                    reply = script(keys=step.keys, args=step.args)
                    reply = reply if isinstance(reply, list) else (reply,)
                step = steps.send(reply)
        except StopIteration as ended:
            result: T = ended.value
            return result

    def _is_retry_due(self) -> bool:
        """Whether this call is to try Redis; the next one is due a second later."""
        now = self._clock.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_SECONDS
        return True

    def _note_failure(self, error: LimitersUnavailable) -> None:
        if not self._redis_is_away:
            log.warning(
                "limiters: Redis does not answer (%s); this process decides by its share until "
                "it answers",
                error,
            )
        self._redis_is_away = self._has_decided = True
        self._retry_at = self._clock.monotonic() + _RETRY_SECONDS

    def _note_answer(self) -> None:
        if self._redis_is_away:
            log.info("limiters: Redis answers again and decides")
        self._redis_is_away = False
