"""Metrics of prometheus-client, counted in this process; and the port that answers with them.

The counters are in the library's default registry, so a program that submits exports them with its
own. They belong to the process: two dispatchers in one process count together. With
``PROMETHEUS_MULTIPROC_DIR`` set before this is imported, processes count together, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import urlsplit

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    MetricsHandler,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from dispatcher.errors import InvalidSettings, Unavailable
from dispatcher.message import Message
from dispatcher.telemetry.journal import Event
from dispatcher.telemetry.liveness import Gauge, Health
from dispatcher.times.clock import Clock

Look = Callable[[], Sequence[Gauge]]
_TOGETHER = "PROMETHEUS_MULTIPROC_DIR"
_PAUSE_FACTOR = 9
_SHORTEST_PAUSE_SECONDS = 5.0
"""Looking takes at most a tenth of the time, however often it is scraped."""
_LATENESS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 3_600,
)  # fmt: skip

TRANSITIONS = Counter(
    "dispatcher_transitions", "Transitions of messages.", ("transition", "channel")
)
REFUSED = Counter("dispatcher_refused", "Submits that were refused.", ("reason", "quota"))
ATTEMPTS = Counter("dispatcher_attempts", "Attempts by their outcome.", ("channel", "outcome"))
LATENESS = Histogram(
    "dispatcher_lateness_seconds",
    "How long after its promised time the first send of a message began.",
    ("channel",),
    buckets=_LATENESS,
)
SWEEP_RUNS = Counter("dispatcher_sweep_runs", "Runs of a duty.", ("duty", "result"))
SWEEP_CHANGES = Counter(
    "dispatcher_sweep_changes", "Changes that duties of the sweep made.", ("duty", "what")
)
ITEMS_REJECTED = Counter(
    "dispatcher_items_rejected", "Items of the broker that were no tasks and were deleted."
)


class Meter:
    def on_event(self, event: Event) -> None:
        TRANSITIONS.labels(event.kind.value, event.channel).inc()

    def attempted(self, attempts: Iterable[tuple[Message, str, float]]) -> None:
        for message, outcome, late_seconds in attempts:
            ATTEMPTS.labels(message.channel, outcome).inc()
            if message.attempt_count == 1:
                LATENESS.labels(message.channel).observe(max(0.0, late_seconds))

    def refused(self, reason: str, quota: str) -> None:
        REFUSED.labels(reason, quota).inc()

    def swept(self, duty: str, did: Mapping[str, int] | None) -> None:
        SWEEP_RUNS.labels(duty, "failed" if did is None else "done").inc()
        for what, changes in (did or {}).items():
            SWEEP_CHANGES.labels(duty, what).inc(changes)

    def item_rejected(self) -> None:
        ITEMS_REJECTED.inc()


class Exposition:
    """Serves metrics and health from a thread, on ``port``; 0 is any that is free.

    ``/metrics`` has the counters of this worker's processes, and vitals; ``/livez`` and ``/readyz``
    answer 200 or 503, with a line that says why. Raises InvalidSettings where the port cannot be
    had.
    """

    def __init__(self, look: Look, health: Health, host: str, port: int, clock: Clock) -> None:
        together = CollectorRegistry()
        if os.environ.get(_TOGETHER):
            MultiProcessCollector(together)  # type: ignore[no-untyped-call]  # upstream's
            ProcessCollector(registry=together)
        else:
            together.register(REGISTRY)
        together.register(VitalsCollector(look, clock=clock))
        handler = type("Handler", (_Handler,), {"registry": together, "health": health})
        try:

            class MetricsServer(ThreadingHTTPServer):
                address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            self._server = MetricsServer((host, port), handler)
        except OSError as error:
            problem = f"{host} port {port} cannot be had: {error.strerror or error}"
            raise InvalidSettings("metrics_port", problem, "a free port") from None
        self.port = self._server.server_port
        Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(MetricsHandler):
    timeout = 10
    """Seconds that a client may be silent."""
    health: Health

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        match urlsplit(self.path).path:
            case "/metrics":
                super().do_GET()
            case "/livez" if (still := self.health.hangs_for()) is not None:
                text = f"not alive: the main loop has stood still for {still.total_seconds():.0f} s"
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, text)
            case "/livez":
                self._say(HTTPStatus.OK, "alive")
            case "/readyz" if away := self.health.away():
                text = f"not ready: no answer from {', '.join(away)}"
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, text)
            case "/readyz":
                self._say(HTTPStatus.OK, f"ready: {', '.join(self.health.servers)}")
            case _:
                self._say(HTTPStatus.NOT_FOUND, "not found: /metrics, /livez and /readyz are here")

    def _say(self, status: HTTPStatus, text: str) -> None:
        content = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class VitalsCollector(Collector):
    """Gauges of the vitals. What is unavailable is left out."""

    def __init__(self, look: Look, *, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._lock = Lock()
        self._vitals: Sequence[Gauge] = ()
        self._good_until = 0.0

    def describe(self) -> Iterable[Metric]:
        return ()  # there is no need to look for being registered

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            gauges = self._now()
        for name, text, values, labels in gauges:
            family = GaugeMetricFamily(f"dispatcher_{name}", text, labels=labels)
            for of_labels, value in values.items():
                family.add_metric(of_labels, value)
            yield family

    def _now(self) -> Sequence[Gauge]:
        began = self._clock.monotonic()
        if began < self._good_until:
            return self._vitals
        try:
            self._vitals = self._look()
        except Unavailable:
            self._vitals = ()
        ended = self._clock.monotonic()
        self._good_until = ended + max(_SHORTEST_PAUSE_SECONDS, _PAUSE_FACTOR * (ended - began))
        return self._vitals
