"""Metrics, as far as they need no extra. ``prometheus`` needs it, and is imported at need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from dispatcher.extras import needs
from dispatcher.times.clock import Clock

if TYPE_CHECKING:
    from dispatcher.telemetry.health import Health
    from dispatcher.telemetry.prometheus import Exposition, Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What no process can count on its own: from the store, and from Redis (None where it is away).

    ``messages`` that live by channel and status; at most a million of each status are counted.
    ``duties``: how long ago each duty of the sweep was done.
    """

    messages: Mapping[tuple[str, str], int]
    overdue: int
    longest_overdue: timedelta
    duties: Mapping[str, timedelta] | None
    workers: int | None
    beats: int | None


def prometheus_meter() -> Meter:
    """Return the meter of this process. Raises InvalidSettings if the library is missing."""
    with _needed():
        from dispatcher.telemetry.prometheus import Meter  # noqa: PLC0415 - an extra
    return Meter()


def exposition(look: Callable[[], Vitals], health: Health, *, clock: Clock) -> Exposition:
    """Return the server of metrics and health. Raises InvalidSettings if the library is missing."""
    with _needed():
        from dispatcher.telemetry.prometheus import Exposition  # noqa: PLC0415 - an extra
    return Exposition(look, health, clock=clock)


def _needed() -> AbstractContextManager[None]:
    return needs("metrics", "metrics_port", instead="no metrics_port")
