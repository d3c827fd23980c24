"""Counts what happens, in the default registry of prometheus-client.

So a program that submits exports it with its own figures. The metrics belong to the process, as the
registry does: two dispatchers in one process count together. With ``PROMETHEUS_MULTIPROC_DIR`` set
before this is imported, processes count together, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from prometheus_client import Counter, Histogram

from dispatcher.telemetry.journal import Event, Transition

_LATENESS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 3_600,
)  # fmt: skip

TRANSITIONS = Counter(
    "dispatcher_transitions", "What became of messages.", ("transition", "channel")
)
REFUSED = Counter("dispatcher_refused", "Submits that were refused.", ("reason", "quota"))
ATTEMPTS = Counter("dispatcher_attempts", "Tries, by what came of them.", ("channel", "outcome"))
LATENESS = Histogram(
    "dispatcher_lateness_seconds",
    "How long after its promised time the first send of a message began.",
    ("channel",),
    buckets=_LATENESS,
)
SWEEP_RUNS = Counter("dispatcher_sweep_runs", "Runs of a duty.", ("duty", "result"))
SWEEP_CHANGES = Counter("dispatcher_sweep_changes", "What duties did.", ("duty", "what"))

ITEMS_REJECTED = Counter(
    "dispatcher_items_rejected", "Items of the broker that were no tasks and were deleted."
)


# Looking up what is counted for some labels costs more than counting.
@cache
def _transitions(transition: Transition, channel: str) -> Counter:
    return TRANSITIONS.labels(transition.value, channel)


@cache
def _attempts(channel: str, outcome: str) -> Counter:
    return ATTEMPTS.labels(channel, outcome)


@cache
def _lateness(channel: str) -> Histogram:
    return LATENESS.labels(channel)


class PrometheusMeter:
    """The :class:`dispatcher.telemetry.journal.Meter` of Prometheus."""

    def told(self, event: Event) -> None:
        """Count a transition."""
        _transitions(event.kind, event.channel).inc()

    def attempted(self, channel: str, outcome: str, late_seconds: float | None) -> None:
        """Count a try; ``late_seconds`` where it is the first of its message."""
        _attempts(channel, outcome).inc()
        if late_seconds is not None:
            _lateness(channel).observe(max(0.0, late_seconds))

    def refused(self, reason: str, quota: str) -> None:
        """Count a submit that was refused."""
        REFUSED.labels(reason, quota).inc()

    def swept(self, duty: str, did: Mapping[str, int] | None) -> None:
        """Count a run of a duty and what it did, None for one that failed."""
        SWEEP_RUNS.labels(duty, "failed" if did is None else "done").inc()
        for what, many in (did or {}).items():
            SWEEP_CHANGES.labels(duty, what).inc(many)

    def item_rejected(self) -> None:
        """Count an item of the broker that was no task."""
        ITEMS_REJECTED.inc()
