"""What the house counts, by the metrics that Prometheus would read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dispatcher import (
    BatchRefused,
    Draft,
    InvalidDraft,
    Message,
    QuotaExceeded,
    Rejection,
    TemporaryFailure,
)
from dispatcher.operations.overview import Overviews
from dispatcher.telemetry.liveness import Kind
from dispatcher.telemetry.metrics.exposition import VitalsCollector
from tests.support.callers import callers_engine
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build

ON = {"metrics_port": 0, "quotas": "2/minute"}
HOUR = timedelta(hours=1)
Counted = Callable[..., float]


@pytest.fixture
def counted() -> Counted:
    """Give what a metric has counted since the test began; its name without ``dispatcher_``."""
    before: dict[tuple[str, frozenset[Any]], float] = {}

    def value(name: str, labels: dict[str, str]) -> float:
        return REGISTRY.get_sample_value(f"dispatcher_{name}", labels) or 0.0

    for family in REGISTRY.collect():
        for each in family.samples:
            before[each.name, frozenset(each.labels.items())] = each.value

    def since(name: str, **labels: str) -> float:
        key = (f"dispatcher_{name}", frozenset(labels.items()))
        return value(name, labels) - before.get(key, 0.0)

    return since


def became(counted: Counted, transition: str, channel: str = "memory") -> float:
    return counted("transitions_total", transition=transition, channel=channel)


def test_submits_and_what_refused_them(build: Build, counted: Counted) -> None:
    house = build(**ON)
    at = house.clock.now() + HOUR
    for _ in range(2):
        house.submit(send_at=at)
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=at)
    with pytest.raises(InvalidDraft):
        house.submit("")
    drafts = [Draft(channel="memory", recipient="ben", body={}, send_at=at) for _ in range(3)]
    *_, third = house.dispatcher.submit_many(drafts)
    assert isinstance(third, Rejection)
    with (
        callers_engine(house.database) as engine,
        engine.connect() as caller,
        pytest.raises(QuotaExceeded),
    ):
        house.submit("ben", session=caller, send_at=at)
    assert became(counted, "scheduled") == 4
    assert counted("refused_total", reason="quota", quota="2/minute") == 3
    assert counted("refused_total", reason="invalid", quota="") == 1


def test_all_or_nothing_counts_each_draft_once(build: Build, counted: Counted) -> None:
    house = build(**ON)
    at = house.clock.now() + HOUR
    drafts = [Draft(channel="memory", recipient="ben", body={}, send_at=at) for _ in range(3)]
    done = house.dispatcher.submit_many(drafts, atomic=True)
    errors = [each.error for each in done if isinstance(each, Rejection)]
    assert sum(isinstance(each, BatchRefused) for each in errors) == 2
    assert counted("refused_total", reason="batch", quota="") == 2
    assert counted("refused_total", reason="quota", quota="2/minute") == 1
    assert became(counted, "scheduled") == 0


def test_attempts_and_lateness_by_the_databases_clock(build: Build, counted: Counted) -> None:
    house = build(clock=hour_ago(), **ON | {"quotas": "9/minute"})

    def fail_once(message: Message) -> None:
        if message.attempt_count == 1 and message.recipient == "ben":
            raise TemporaryFailure("busy")

    house.memory.before = fail_once
    ada, ben = house.submit("ada"), house.submit("ben")
    house.deliver(ada, ben)
    house.change([ben], next_attempt_at=ben.send_at)
    house.deliver(ben)
    assert counted("attempts_total", channel="memory", outcome="sent") == 2
    assert counted("attempts_total", channel="memory", outcome="temporary") == 1
    assert became(counted, "sent") == 2
    assert became(counted, "retried") == 1
    assert counted("lateness_seconds_count", channel="memory") == 2
    # They were promised by a clock that is an hour slow.
    assert 7_200 - 30 < counted("lateness_seconds_sum", channel="memory") < 7_200 + 120


def test_what_is_on_time_is_late_by_milliseconds(build: Build, counted: Counted) -> None:
    house = build(clock=hour_ago(), **ON)
    message = house.submit()
    house.change([message], **dict.fromkeys(("send_at", "next_attempt_at"), house.database_time()))
    house.deliver(message)
    assert 0 <= counted("lateness_seconds_sum", channel="memory") < 5
    assert counted("lateness_seconds_bucket", channel="memory", le="5.0") == 1


def test_snoozes(build: Build, counted: Counted) -> None:
    channels = {"memory": {"transport": "memory", "limits": ["1/minute"]}}
    house = build(clock=hour_ago(), channels=channels, **ON)
    house.deliver(house.submit("ada"), house.submit("ben"))
    assert became(counted, "snoozed") == 1


def test_how_the_house_stands(build: Build) -> None:
    house = build(clock=hour_ago(), **ON)
    house.submit()
    late = house.submit("ben", on_unknown="hold")
    house.change([late], send_at=house.database_time() - 2 * HOUR)
    far = house.submit("eve", send_in=5 * HOUR)
    overviews: Overviews = house.parts.overviews
    house.parts.signs.note(Kind.WORKER, {"one": timedelta(0), "dead": timedelta(minutes=1)})
    house.parts.signs.note(Kind.DUTY, {"rescue": timedelta(seconds=4)})
    vitals = overviews.vitals()
    assert vitals.messages == {("memory", "scheduled"): 3}
    assert vitals.overdue == 2
    assert vitals.longest_overdue > timedelta(minutes=59)
    assert (vitals.workers, vitals.beats) == (1, 0)
    assert vitals.duties is not None
    assert timedelta(seconds=4) <= vitals.duties["rescue"] < timedelta(seconds=30)
    house.dispatcher.cancel(far.id)
    assert overviews.vitals().messages == {("memory", "scheduled"): 2}
    names = {each.name for each in VitalsCollector(overviews.vitals, clock=house.clock).collect()}
    assert "dispatcher_oldest_overdue_seconds" in names


def test_nothing_is_counted_without_a_port(house: House, counted: Counted) -> None:
    house.submit(send_in=HOUR)
    assert became(counted, "scheduled") == 0
