"""Metrics: what is counted, what they are called, and that they cost nothing when off."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dispatcher import (
    BatchRefused,
    Draft,
    InvalidDraft,
    InvalidSettings,
    Message,
    QuotaExceeded,
    Rejection,
    Settings,
    Status,
    TemporaryFailure,
)
from dispatcher.app import App
from dispatcher.errors import DispatcherError, ReservationsUnavailable, StoreUnavailable
from dispatcher.operations.overview import Overviews
from dispatcher.telemetry import prometheus
from dispatcher.telemetry.journal import FIELDS, Event, Transition
from dispatcher.telemetry.liveness import Gauge, Health, Kind, Sign
from dispatcher.telemetry.prometheus import Exposition, VitalsCollector
from dispatcher.testing import a_message
from tests.support.callers import callers_engine
from tests.support.clock import MovableClock
from tests.support.environment import child_environment
from tests.support.house import hour_ago
from tests.support.house_fixtures import Build

ON = {"metrics_port": 0, "quotas": "2/minute"}
HOUR = timedelta(hours=1)
Counted = Callable[..., float]


@pytest.fixture
def counted() -> Counted:
    """Give what a metric has counted since the test began; its name without ``dispatcher_``."""

    def values() -> dict[tuple[str, frozenset[Any]], float]:
        families = REGISTRY.collect()
        every = (sample for family in families for sample in family.samples)
        return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in every}

    def since(name: str, **labels: str) -> float:
        key = (f"dispatcher_{name}", frozenset(labels.items()))
        return values().get(key, 0.0) - before.get(key, 0.0)

    before = values()
    return since


def became(counted: Counted, transition: str) -> float:
    return counted("transitions_total", transition=transition, channel="memory")


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
    # All or none: each is counted once.
    done = house.dispatcher.submit_many(
        [replace(draft, recipient="eve") for draft in drafts], atomic=True
    )
    errors = [answer.error for answer in done if isinstance(answer, Rejection)]
    assert sum(isinstance(error, BatchRefused) for error in errors) == 2
    assert counted("refused_total", reason="batch", quota="") == 2
    assert counted("refused_total", reason="quota", quota="2/minute") == 4
    assert became(counted, "scheduled") == 4
    for error in (DispatcherError("why"), StoreUnavailable("why")):
        house.parts.journal.refused(error)
    for reason in ("other", "unavailable"):
        assert counted("refused_total", reason=reason, quota="") == 1


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
    now = house.submit("eve")
    house.change([now], **dict.fromkeys(("send_at", "next_attempt_at"), house.database_time()))
    house.deliver(now)
    assert counted("attempts_total", channel="memory", outcome="sent") == 3
    assert counted("attempts_total", channel="memory", outcome="temporary") == 1
    assert became(counted, "sent") == 3
    assert became(counted, "retried") == 1
    assert counted("lateness_seconds_count", channel="memory") == 3
    assert counted("lateness_seconds_bucket", channel="memory", le="5.0") == 1
    # They were promised by a clock that is an hour slow.
    assert 7_200 - 30 < counted("lateness_seconds_sum", channel="memory") < 7_200 + 120


def test_how_the_house_stands(build: Build) -> None:
    house = build(clock=hour_ago(), **ON)
    house.submit()
    late = house.submit("ben", on_unknown="hold")
    house.change([late], send_at=house.database_time() - 2 * HOUR)
    far = house.submit("eve", send_in=5 * HOUR)
    overviews: Overviews = house.parts.overviews
    house.parts.signs.note(Kind.WORKER, {"one": timedelta(0), "dead": timedelta(minutes=1)})
    house.parts.signs.note(Kind.DUTY, {"rescue": timedelta(seconds=4)})
    vitals = {gauge.name: gauge.values for gauge in overviews.vitals()}
    assert vitals["messages"] == {("memory", "scheduled"): 3}
    assert vitals["overdue_messages"] == {(): 2}
    assert vitals["oldest_overdue_seconds"][()] > 59 * 60
    assert (vitals["workers"], vitals["beats"]) == ({(): 1}, {(): 0})
    assert 4 <= vitals["sweep_age_seconds"]["rescue",] < 30
    house.dispatcher.cancel(far.id)
    assert overviews.vitals()[0].values == {("memory", "scheduled"): 2}
    collector = VitalsCollector(overviews.vitals, clock=house.clock)
    names = {metric.name for metric in collector.collect()}
    assert "dispatcher_oldest_overdue_seconds" in names


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operating.md"
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
COUNTED = [metric for metric in vars(prometheus).values() if isinstance(metric, MetricWrapperBase)]
KNOWN_LABELS = {
    "transition", "channel", "reason", "quota", "outcome", "duty", "result", "what", "status", "le",
}  # fmt: skip


def overviews_with(signs: Callable[[], Any]) -> Overviews:
    by_channel = {"sms": {Status.SCHEDULED: 7, Status.HELD: 1, Status.SENT: 9}}
    overdue = SimpleNamespace(many=2, longest=timedelta(seconds=90))
    known: Any = SimpleNamespace(
        counts=lambda **_: SimpleNamespace(by_channel=by_channel),
        overdue=lambda: overdue,
        read=signs,
    )
    return Overviews(
        settings=known, figures=known, fills=known, signs=known, timelines=known, pauses=known
    )


SIGNS = dict.fromkeys(Kind, (Sign(name="rescue", age=timedelta(seconds=1.5)),))
VITALS = overviews_with(lambda: SIGNS).vitals()


def samples(*collectors: Collector) -> Iterator[Any]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        yield from family.samples


def everything() -> list[Any]:
    """Let each metric have a sample, and return them all."""
    one = prometheus.Meter()
    one.on_event(Event(next(iter(Transition)), UUID(int=1), "sms", {}))
    one.attempted([(a_message(channel="sms", attempt_count=1), "sent", 0.01)])
    one.refused("quota", "1/minute")
    one.swept("rescue", {"messages": 1})
    one.item_rejected()
    for metric in COUNTED:
        assert [*samples(metric)], f"a new metric: let {metric} have a sample here"
    vitals = VitalsCollector(lambda: VITALS, clock=MovableClock())
    return list(samples(*COUNTED, vitals))


def test_no_label_names_a_recipient_a_scope_or_a_message() -> None:
    assert {name for metric in everything() for name in metric.labels} <= KNOWN_LABELS


def expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [variable["query"] for variable in board["templating"]["list"]]


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    there: dict[str, set[str]] = {}
    for metric in everything():
        there.setdefault(metric.name, set()).update(metric.labels)
    asked = {name for text in expressions() for name in re.findall(r"\bdispatcher_\w+", text)}
    assert asked <= set(there)
    for text in expressions():
        names = re.findall(r"\bdispatcher_\w+", text)
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", text))
        for some in re.findall(r"by \(([^)]*)\)", text):
            labels |= {part.strip() for part in some.split(",")}
        for name in names:
            assert labels <= there[name] | {"le"}, text
        for said in re.findall(r"transition=~?\"([^\"]*)\"", text):
            assert set(said.split("|")) <= {kind.value for kind in Transition}, text
    not_shown = {name for name in there if not name.endswith("_created")} - asked
    assert not_shown == set()


def test_the_page_tells_of_every_metric_transition_and_field() -> None:
    page = PAGE.read_text().split("\n## Logs\n")[1].split("\n## Probes\n")[0]
    suffixes = ("_bucket", "_sum", "_count", "_created")
    names = {metric.name for metric in everything()}
    families = {re.sub(f"({'|'.join(suffixes)})$", "", name) for name in names}
    words = families | {f"`{kind.value}`" for kind in Transition} | {f"`{name}`" for name in FIELDS}
    assert {word for word in words if word not in page} == set()
    asked = set(re.findall(r"\bdispatcher_\w+", page))
    assert asked <= names | families


def test_vitals_are_read_no_more_than_a_tenth_of_the_time() -> None:
    clock = MovableClock()
    looks: list[float] = []

    def look() -> list[Gauge]:
        looks.append(clock.monotonic())
        clock.advance(timedelta(seconds=2))
        return VITALS

    collector = VitalsCollector(look, clock=clock)
    for _ in range(10):
        list(collector.collect())
        clock.advance(timedelta(seconds=4))
    assert looks[1] - looks[0] >= 20
    assert len(looks) == 2 or len(looks) == 3


def test_metrics_that_the_store_does_not_answer_are_left_out() -> None:
    look = Mock(side_effect=StoreUnavailable("it is away"))
    assert list(VitalsCollector(look, clock=MovableClock()).collect()) == []
    silent = overviews_with(Mock(side_effect=ReservationsUnavailable("it is away"))).vitals()
    names = {e.name for e in samples(VitalsCollector(lambda: silent, clock=MovableClock()))}
    expected = ("messages", "overdue_messages", "oldest_overdue_seconds")
    assert names == {f"dispatcher_{name}" for name in expected}


def test_a_port_that_is_taken_is_named() -> None:
    clock = MovableClock()
    health = Health({}, clock=clock)
    first = Exposition(lambda: VITALS, health, "127.0.0.1", 0, clock)
    taken = f"port {first.port} cannot be had"
    with closing(first), pytest.raises(InvalidSettings, match=taken) as caught:
        Exposition(lambda: VITALS, health, "127.0.0.1", first.port, clock)
    assert caught.value.field == "metrics_port"


def test_where_metrics_and_traces_are_off_their_libraries_are_not_needed() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = sys.modules['prometheus_client'] = None; "
        "from dispatcher import Settings; from dispatcher.app import App; "
        "parts = App(Settings.load()); parts.submitter, parts.delivery"
    )
    subprocess.run([sys.executable, "-c", program], env=child_environment(), check=True)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("dispatcher.telemetry.prometheus")
    monkeypatch.delitem(sys.modules, "dispatcher.telemetry.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidSettings, match="needs prometheus_client") as caught:
        App(Settings.load(metrics_port=0)).journal  # noqa: B018 - it is built
    assert caught.value.accepted.startswith("pip install 'quota-dispatcher[metrics]'")
