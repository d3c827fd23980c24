"""Health of a worker or a beat, for a supervisor that probes it: alive, and ready.

Alive: its main loop turns, or waits for a broker that is away. Ready: its servers answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock, Thread

from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

BROKER = "broker"
HANGS_AFTER = timedelta(seconds=60)
"""How long a main loop may stand still while its broker answers."""
PATIENCE = timedelta(milliseconds=800)
"""How long a probe waits for servers: less than Kubernetes waits for a probe by default, 1 s."""
_PUBLISHES_WITHIN_SECONDS = 5.0
_RECONNECTS_WITHIN_SECONDS = 10.0


class Health:
    """Answers the probes of one process. Shared by threads.

    ``servers`` has for each server a question that raises where it does not answer. Each is asked
    in a thread of its own, and never twice at a time: a server that hangs costs one thread.
    """

    def __init__(
        self,
        servers: Mapping[str, Callable[[], object]],
        *,
        clock: Clock,
        hangs_after: timedelta = HANGS_AFTER,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._clock = clock
        self._hangs_after_seconds = hangs_after.total_seconds()
        self._patience_seconds = patience.total_seconds()
        self.servers = servers
        self._answers: dict[str, Future[bool]] = {}
        self._lock = Lock()
        self._turned_at = clock.monotonic()
        self._suspected: tuple[float, float] | None = None
        """The turn after which the loop has stood still, and when a probe first found that."""
        self._publishes_since: float | None = None
        self._last_away: Sequence[str] = []

    def turned(self) -> None:
        self._turned_at = self._clock.monotonic()

    @contextmanager
    def turning(self) -> Iterator[None]:
        """Decorate a call whose end is a turn of the main loop."""
        try:
            yield
        finally:
            self.turned()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Decorate a call that publishes: while it hangs, the broker counts as away.

        A RabbitMQ whose memory or disk is full answers everything but a publish.
        """
        self._publishes_since = self._clock.monotonic()
        try:
            yield
        finally:
            self._publishes_since = None

    def hangs_for(self) -> timedelta | None:
        """Return how long the main loop has stood still, None for a process that is alive.

        While the broker is away the loop may wait for it, and is given the same time again. The
        broker may also have come back a moment ago. So a loop hangs only if it still has not turned
        10 seconds after a probe found it standing still and its broker answering.
        """
        turned_at, now = self._turned_at, self._clock.monotonic()
        still = now - turned_at
        if still <= self._hangs_after_seconds:
            return None
        if self._away([BROKER]):
            self.turned()
            return None
        if self._suspected is None or self._suspected[0] != turned_at:
            self._suspected = (turned_at, now)
        if now - self._suspected[1] < _RECONNECTS_WITHIN_SECONDS:
            return None
        return timedelta(seconds=still)

    def away(self) -> Sequence[str]:
        """Return the names of the servers that do not answer: none where all is ready."""
        away = self._away([*self.servers])
        if away != self._last_away:
            self._last_away = away
            if away:
                log.warning("not ready: no answer from %s", ", ".join(away))
            else:
                log.info("ready: every server answers")
        return away

    def _away(self, names: Sequence[str]) -> Sequence[str]:
        answers = {name: self._answer(name) for name in names}
        until = self._clock.monotonic() + self._patience_seconds
        away = []
        for name, answer in answers.items():
            try:
                answers_well = answer.result(max(0.0, until - self._clock.monotonic()))
            except NoAnswer:
                answers_well = False
            if name == BROKER and (since := self._publishes_since) is not None:
                publishes_for = self._clock.monotonic() - since
                answers_well = answers_well and publishes_for <= _PUBLISHES_WITHIN_SECONDS
            if not answers_well:
                away.append(name)
        return away

    def _answer(self, name: str) -> Future[bool]:
        """Ask a server, unless that is under way; it is told whether it answers."""
        with self._lock:
            answer = self._answers.get(name)
            if answer is None or answer.done():
                answer = self._answers[name] = Future()
                title = f"health {name}"
                Thread(target=self._ask, args=(name, answer), name=title, daemon=True).start()
            return answer

    def _ask(self, name: str, answer: Future[bool]) -> None:
        try:
            self.servers[name]()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server is of no use
            log.debug("%s does not answer (%s)", name, type(error).__name__)
            answer.set_result(False)
        else:
            answer.set_result(True)
