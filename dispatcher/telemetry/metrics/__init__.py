"""Figures for Prometheus. ``meter`` and ``exposition`` need the extra ``metrics``.

``meter`` counts what happens in this process, ``vitals`` are what the store and Redis know, and
``exposition`` answers whoever scrapes. The first and the last are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dispatcher.errors import InvalidSettings
from dispatcher.telemetry.journal import Meter
from dispatcher.telemetry.metrics.vitals import Vitals
from dispatcher.times.clock import Clock

if TYPE_CHECKING:
    from dispatcher.telemetry.metrics.exposition import Exposition


def prometheus_meter() -> Meter:
    """Return what counts for Prometheus. Raises InvalidSettings where its library is missing."""
    with _installed():
        from dispatcher.telemetry.metrics.meter import PrometheusMeter  # noqa: PLC0415 - an extra
    return PrometheusMeter()


def exposition(look: Callable[[], Vitals], *, clock: Clock) -> Exposition:
    """Return what answers Prometheus. Raises InvalidSettings where its library is missing."""
    with _installed():
        from dispatcher.telemetry.metrics.exposition import Exposition  # noqa: PLC0415 - an extra
    return Exposition(look, clock=clock)


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("prometheus_client"):
            raise
        raise InvalidSettings(
            "metrics_port",
            "needs prometheus_client, which is not installed",
            "pip install 'dispatcher[metrics]', or no metrics_port",
        ) from None
