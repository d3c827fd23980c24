"""What limiters do while Redis does not answer: each process gives a share of the limits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from dispatcher.errors import InvalidValue, LimitersUnavailable, quoted
from dispatcher.limiters import operations
from dispatcher.limiters.limit_set import Call, LimitSet, Pause, Steps
from dispatcher.redis.memory import MemoryRedis

T = TypeVar("T")
P = ParamSpec("P")
Operation = Callable[Concatenate[LimitSet, P], Steps[T]]

_ASKED_AGAIN_SECONDS = 1.0
"""How long a process decides alone before one of its calls asks Redis again."""
_TAKING: tuple[object, ...] = (
    operations.acquire, operations.enter, operations.acquire_up_to, operations.acquire_each,
    operations.peek,
)  # fmt: skip
_OF_PERMITS: dict[object, Callable[..., Steps[Any]]] = {
    operations.give_back: operations.give_back,
    operations.abandon: operations.give_back,
    operations.end_holds: operations.end_holds,
    operations.leave: operations.end_holds,
    operations.renew: operations.renew,
    operations.keep: operations.renew,
}
"""What is done about permits, and what that is where the share has granted them."""
_OF_BOTH: tuple[object, ...] = (operations.reset, operations.close)

log = logging.getLogger(__name__)


class LocalShare:
    """A share of some limits, counted in the memory of this process.

    It counts what it grants itself: nothing that Redis granted before, and Redis counts nothing of
    it afterwards.
    """

    def __init__(self, limit_set: LimitSet, share: float | None) -> None:
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or share is None or not 0 < share <= 1:
            accepted = 'with on_error="local" a number above 0 and up to 1: 1 / number of processes'
            raise InvalidValue("share", quoted(share), accepted)
        self._limit_set = limit_set
        self._clock = limit_set.clock
        self._set = limit_set.shared(share)
        self._memory = MemoryRedis(clock=self._clock)
        self._is_used = False
        self._is_away = False
        self._ask_at = 0.0

    def steps(self, operation: Operation[P, T], *args: P.args, **named: P.kwargs) -> Steps[T]:
        """Return the steps of an operation: on Redis, or without it where that is away."""
        if operation in _OF_BOTH:
            yield from self._alone(operation, *args, **named)
        elif operation in _OF_PERMITS and self._is_used:
            found = yield from self._alone(_OF_PERMITS[operation], *args, **named)
            if found:
                known: T = found
                return known
        if operation not in _TAKING:
            return (yield from operation(self._limit_set, *args, **named))
        if not self._is_away or self._is_to_ask():
            try:
                answer = yield from operation(self._limit_set, *args, **named)
            except LimitersUnavailable as error:
                self._begin(error)
            else:
                self._end()
                return answer
        return (yield from self._alone(operation, *args, **named))

    def _alone(self, operation: Operation[P, T], *args: P.args, **named: P.kwargs) -> Steps[T]:
        steps = operation(self._set, *args, **named)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    yield step
                    reply: Any = ()
                elif isinstance(step, Call):
                    script = self._memory.register_script(self._set.text(step.script))
                    reply = script(keys=step.keys, args=step.args)
                    reply = reply if isinstance(reply, list) else (reply,)
                else:
                    reply = ()
                step = steps.send(reply)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def _is_to_ask(self) -> bool:
        """Whether it is time to ask Redis again; then this is the call that does."""
        now = self._clock.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + _ASKED_AGAIN_SECONDS
        return True

    def _begin(self, error: LimitersUnavailable) -> None:
        if not self._is_away:
            log.warning(
                "limiters: Redis does not answer (%s); this process decides by its share until "
                "it answers",
                error,
            )
        self._is_away = self._is_used = True
        self._ask_at = self._clock.monotonic() + _ASKED_AGAIN_SECONDS

    def _end(self) -> None:
        if self._is_away:
            log.info("Redis answers again and decides about limits")
        self._is_away = False
