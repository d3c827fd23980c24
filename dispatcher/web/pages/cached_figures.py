"""Figures that are read once for all visitors, in a thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from math import inf
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from dispatcher.times.clock import SystemClock
from dispatcher.web.problems import Refused

T = TypeVar("T")

SECONDS = 2.0
"""How often the numbers of a page change at most."""
_PAUSE = 19
"""Ratio of the pause after a read to its length: each takes at most a twentieth of the time."""
_OLD_SECONDS = 30.0
_WAIT_SECONDS, _OLD_WAIT_SECONDS, _FIRST_WAIT_SECONDS = 0.05, 0.1, 5.0
"""How long a visit waits for a read: beside a figure, beside an old one, and without any."""


class CachedRead(Generic[T]):
    """A value that is read once for all visitors, every two seconds at most.

    A visit does not wait for a long read: it is shown what was read before, which says when that
    was. Only the first visits of a process wait, for some seconds at most.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._clock = SystemClock()
        self._seen: T | None = None
        self._seen_at = self._until = -inf
        self._under_way: Future[T] | None = None

    def of(self, read: Callable[[], T]) -> T:
        """Return what was read last. Raises as ``read``, and Refused before the first read ends."""
        with self._lock:
            now, seen, coming = self._clock.monotonic(), self._seen, self._under_way
            if coming is None and now >= self._until:
                coming = Future()
                Thread(target=self._read, args=(read, coming), name="figures", daemon=True).start()
                self._under_way = coming
            patience = _WAIT_SECONDS
            if now >= self._seen_at + _OLD_SECONDS:
                patience = _FIRST_WAIT_SECONDS if seen is None else _OLD_WAIT_SECONDS
        if coming is not None:
            try:
                return coming.result(patience)
            except NotYet:
                pass
        if seen is None:
            detail = "the messages are being counted; look again in some seconds"
            raise Refused(503, "not-yet", detail, headers={"Retry-After": "2"})
        return seen

    def _read(self, read: Callable[[], T], coming: Future[T]) -> None:
        began = self._clock.monotonic()
        try:
            found = read()
        except BaseException as error:  # noqa: BLE001 - the waiting threads raise it
            with self._lock:
                self._under_way = None
                if self._seen is not None:
                    self._pause(began)
            coming.set_exception(error)
            return
        with self._lock:
            self._seen, self._seen_at, self._under_way = found, self._clock.monotonic(), None
            self._pause(began)
        coming.set_result(found)

    def _pause(self, began: float) -> None:
        now = self._clock.monotonic()
        self._until = now + max(SECONDS, _PAUSE * (now - began))


class CachedFigures:
    """What the pages read once for all visitors, each by a key."""

    def __init__(self) -> None:
        self._reads: dict[Hashable, CachedRead[Any]] = {}

    def of(self, key: Hashable, read: Callable[[], T]) -> T:
        cached: CachedRead[T] = self._reads.setdefault(key, CachedRead())
        return cached.of(read)
