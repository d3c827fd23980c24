"""Doubles that stand before a real part, and things that happen at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

from dispatcher import Message, Settings
from dispatcher.delivery import Delivery
from dispatcher.delivery.group import Group
from dispatcher.delivery.send_log import ClaimLog
from dispatcher.times.clock import SystemClock

T = TypeVar("T")


class HookCalls(list[tuple[str, Message]]):
    """Hooks of these names, and the calls of them: name and message."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, lambda message, name=name: self.append((name, message)))


class Between:
    """Passes calls on to a real part; before, after or instead of chosen ones others are made."""

    def __init__(
        self,
        real: object,
        *,
        before: Mapping[str, Callable[[], object]] | None = None,
        after: Mapping[str, Callable[[], object]] | None = None,
        instead: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._real = real
        self._before = before or {}
        self._after = after or {}
        self._instead = instead or {}

    def __getattr__(self, name: str) -> Any:
        target = self._instead.get(name) or getattr(self._real, name)
        if name not in self._before and name not in self._after:
            return target

        def call(*positional: Any, **named: Any) -> Any:
            self._before.get(name, _nothing)()
            answer = target(*positional, **named)
            self._after.get(name, _nothing)()
            return answer

        return call


class WorkerDied(BaseException):
    """Ends a send like the death of its process."""


def once(action: Callable[[], object]) -> Callable[[], None]:
    done = threading.Event()

    def act() -> None:
        if not done.is_set():
            done.set()
            action()

    return act


def raising(*errors: BaseException) -> Callable[[], None]:
    left = list(errors)

    def act() -> None:
        if left:
            raise left.pop(0)

    return act


def at_once(actions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run all actions in threads that start together; return answers or errors in order."""
    gate = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T | Exception:
        gate.wait(60)
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever it raises is its answer
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def _nothing() -> None:
    pass


_BARE: Any = SimpleNamespace(clock=SystemClock(), settings=Settings())


def a_group(delivery: Delivery = _BARE) -> Group:
    log = ClaimLog(uuid4())
    return Group(delivery, (), claimed_at=0.0, send_log=log)
