"""A doctor for houses in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

from celery import Celery

from dispatcher.app import App
from dispatcher.errors import Unavailable
from dispatcher.operations.checks import Finding, Level
from dispatcher.operations.doctor import Doctor
from dispatcher.settings import Settings
from dispatcher.telemetry.liveness import Kind
from dispatcher.times.clock import Clock
from tests.support.house import House

OK, WARNING, ERROR, SKIPPED = Level.OK, Level.WARNING, Level.ERROR, Level.SKIPPED


@contextmanager
def doctor_for(
    settings: Settings, *, clock: Clock | None = None, app: Celery | None = None
) -> Iterator[Doctor]:
    with closing(App(settings, clock)) as ours:
        yield ours.doctor(app)


@contextmanager
def _called_to(
    house: House, *, app: Celery | None = None, at_work: bool = True, **settings: Any
) -> Iterator[Doctor]:
    if at_work:
        with suppress(Unavailable):
            note_at_work(house)
    chosen = house.settings.model_copy(update=settings)
    with doctor_for(chosen, clock=house.clock, app=app) as doctor:
        yield doctor


def examined(house: House, **how: Any) -> dict[str, Finding]:
    """Examine what a house's settings, or some changed ones, lead to; findings by check.

    Where it is ``at_work``, a worker and a beat have just been seen.
    """
    with _called_to(house, **how) as doctor:
        return {finding.check: finding for finding in doctor.examine().findings}


def finding_of(house: House, check: str, **how: Any) -> Finding:
    """Do one check, as :func:`examined` does all."""
    with _called_to(house, **how) as doctor:
        [finding] = doctor.find([check])
    return finding


def judged(house: House, check: str, level: Level, *says: str, **how: Any) -> Finding:
    """Do one check as :func:`finding_of` does; it has this level, and says this."""
    finding = finding_of(house, check, **how)
    assert finding.level is level, finding
    for words in says:
        assert words in f"{finding.found} remedy: {finding.remedy}"
    return finding


def note_at_work(house: House) -> None:
    for kind in (Kind.WORKER, Kind.BEAT):
        house.parts.signs.note(kind, {"somebody": timedelta(0)})


def levels(findings: dict[str, Finding], room: str = "") -> dict[str, Level]:
    return {
        name: finding.level
        for name, finding in findings.items()
        if finding.level is not OK and name.startswith(room)
    }


def stops(house: House, **settings: Any) -> set[str]:
    with doctor_for(house.settings.model_copy(update=settings), clock=house.clock) as doctor:
        return {finding.check for finding in doctor.before_start()}
