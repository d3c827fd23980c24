"""Threads of notifications and signs of life. Without them a process does its work all the same."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from dispatcher.errors import DispatcherError

log = logging.getLogger(__name__)

T = TypeVar("T")

_COLLECT_SECONDS = 0.1
_AT_ONCE = 500


class Backlog(Generic[T]):
    """Notifications that a thread of its own passes to ``work`` a moment later, in order.

    At most ``most`` wait, further ones are dropped. One that waits when its process dies is lost.
    """

    def __init__(self, name: str, work: Callable[[Sequence[T]], object], *, most: int) -> None:
        self._name = name
        self._work = work
        self._most = most
        self._waiting: deque[T] = deque()
        self._dropped = self._in_hand = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_filled, self._is_ending = threading.Event(), threading.Event()

    def add(self, item: T) -> None:
        if len(self._waiting) >= self._most:
            self._dropped += 1
            return
        self._waiting.append(item)
        with self._lock:
            if self._thread is None and not self._is_ending.is_set():
                self._thread = started(self._run, self._name)
        self._is_filled.set()

    def close(self, timeout: float = 2.0) -> None:
        """Pass on what waits, for so many seconds at most."""
        self._is_ending.set()
        self._is_filled.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
            if thread.is_alive():
                self._warn(len(self._waiting) + self._in_hand, "the process ended first")

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._is_filled.wait()
            is_last = self._is_ending.wait(_COLLECT_SECONDS)
            self._is_filled.clear()
            while self._waiting:
                self._in_hand = min(_AT_ONCE, len(self._waiting))
                items = [self._waiting.popleft() for _ in range(self._in_hand)]
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    self._warn(dropped, "too many waited")
                try:
                    self._work(items)
                except Exception as error:  # noqa: BLE001 - its thread must not end
                    is_ours = isinstance(error, DispatcherError)  # others may quote a body
                    self._warn(len(items), error if is_ours else type(error).__name__)

    def _warn(self, number: int, why: object) -> None:
        log.warning("%s: %d notifications dropped: %s", self._name, number, why)


def started(run: Callable[[], None], name: str) -> threading.Thread | None:
    """Return a thread that runs this, None where the system gives none now: try again later."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("the thread of the %s did not start, the next use tries again: %s", name, error)
        return None
    return thread
