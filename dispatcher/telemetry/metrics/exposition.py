"""Answers whoever scrapes: what the processes of this worker counted, and how the house stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from prometheus_client import REGISTRY, CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from dispatcher.errors import InvalidSettings, Unavailable
from dispatcher.telemetry.metrics.vitals import Vitals
from dispatcher.times.clock import Clock

_TOGETHER = "PROMETHEUS_MULTIPROC_DIR"
_PAUSE_FACTOR = 9
_SHORTEST_PAUSE_SECONDS = 5.0
"""Looking takes at most a tenth of the time, however often it is scraped."""


class Exposition:
    """Serves ``/metrics`` from a thread of its own."""

    def __init__(self, look: Callable[[], Vitals], *, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._close: Callable[[], object] = lambda: None

    def serve(self, host: str, port: int) -> int:
        """Begin to answer on that port, 0 for any that is free; return it.

        Raises InvalidSettings where it cannot be had.
        """
        registry = CollectorRegistry()
        if os.environ.get(_TOGETHER):
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # upstream's
            ProcessCollector(registry=registry)
        else:
            registry.register(_Whole())
        registry.register(VitalsCollector(self._look, clock=self._clock))
        try:
            server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            problem = f"{host} port {port} cannot be had: {error.strerror or error}"
            raise InvalidSettings("metrics_port", problem, "a free port") from None
        self._close = server.shutdown
        return server.server_port

    def close(self) -> None:
        """Answer no more."""
        self._close()


class _Whole(Collector):
    """What is counted in this process, by whomever."""

    def collect(self) -> Iterable[Metric]:
        return REGISTRY.collect()


class VitalsCollector(Collector):
    """Says how the house stands. What is unavailable is left out."""

    def __init__(self, look: Callable[[], Vitals], *, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._lock = Lock()
        self._found: Vitals | None = None
        self._good_until = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return nothing: there is no need to look for being registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        with self._lock:
            found = self._now()
        if found is None:
            return
        messages = GaugeMetricFamily(
            "dispatcher_messages", "Messages that live.", labels=("channel", "status")
        )
        for labels, many in found.messages.items():
            messages.add_metric(labels, many)
        yield messages
        yield GaugeMetricFamily(
            "dispatcher_overdue_messages", "Messages that nobody took.", found.overdue
        )
        yield GaugeMetricFamily(
            "dispatcher_oldest_overdue_seconds",
            "How long ago the first of them was due.",
            found.longest_overdue.total_seconds(),
        )
        if found.duties is not None:
            ages = GaugeMetricFamily(
                "dispatcher_sweep_age_seconds", "Since a duty was last done.", labels=("duty",)
            )
            for duty, age in found.duties.items():
                ages.add_metric((duty,), age.total_seconds())
            yield ages
        for name, many_alive in (("workers", found.workers), ("beats", found.beats)):
            if many_alive is not None:
                yield GaugeMetricFamily(f"dispatcher_{name}", f"{name} alive.", many_alive)

    def _now(self) -> Vitals | None:
        began = self._clock.monotonic()
        if began < self._good_until:
            return self._found
        try:
            self._found = self._look()
        except Unavailable:
            self._found = None
        ended = self._clock.monotonic()
        pause = max(_SHORTEST_PAUSE_SECONDS, _PAUSE_FACTOR * (ended - began))
        self._good_until = ended + pause
        return self._found
