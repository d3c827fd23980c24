"""Metrics: what they are called, what labels they have, and that they cost nothing when off."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dispatcher import InvalidSettings, Settings
from dispatcher.app import App
from dispatcher.errors import DispatcherError, StoreUnavailable
from dispatcher.telemetry.journal import FIELDS, Event, Transition
from dispatcher.telemetry.metrics import meter
from dispatcher.telemetry.metrics.exposition import Exposition, VitalsCollector
from dispatcher.telemetry.metrics.vitals import Vitals
from dispatcher.testing import a_message
from tests.support.clock import MovableClock
from tests.support.environment import child_environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "watching.md"
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
COUNTED = (
    meter.TRANSITIONS, meter.REFUSED, meter.ATTEMPTS, meter.LATENESS, meter.SWEEP_RUNS,
    meter.SWEEP_CHANGES, meter.ITEMS_REJECTED,
)  # fmt: skip
KNOWN_LABELS = {
    "transition", "channel", "reason", "quota", "outcome", "duty", "result", "what", "status", "le",
}  # fmt: skip
VITALS = Vitals(
    messages={("sms", "scheduled"): 7, ("sms", "held"): 1},
    overdue=2,
    longest_overdue=timedelta(seconds=90),
    duties={"rescue": timedelta(seconds=1.5)},
    workers=3,
    beats=2,
)


def samples(*collectors: Collector) -> Iterator[Any]:
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        yield from family.samples


def touched() -> None:
    """Let each metric have a sample."""
    one = meter.PrometheusMeter()
    one.told(Event(next(iter(Transition)), UUID(int=1), "sms", {}))
    one.attempted("sms", "sent", 0.01)
    one.refused("quota", "1/minute")
    one.swept("rescue", {"messages": 1})
    one.item_rejected()


def everything() -> list[Any]:
    touched()
    vitals = VitalsCollector(lambda: VITALS, clock=MovableClock())
    return list(samples(*COUNTED, vitals))


def test_no_label_names_a_recipient_a_scope_or_a_message() -> None:
    assert {name for each in everything() for name in each.labels} <= KNOWN_LABELS


def expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [each["query"] for each in board["templating"]["list"]]


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    there: dict[str, set[str]] = {}
    for each in everything():
        there.setdefault(each.name, set()).update(each.labels)
    asked = {name for text in expressions() for name in re.findall(r"\bdispatcher_\w+", text)}
    assert asked <= set(there)
    for text in expressions():
        names = re.findall(r"\bdispatcher_\w+", text)
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", text))
        for some in re.findall(r"by \(([^)]*)\)", text):
            labels |= {each.strip() for each in some.split(",")}
        for name in names:
            assert labels <= there[name] | {"le"}, text
    not_shown = {name for name in there if not name.endswith("_created")} - asked
    assert not_shown == set()


def test_the_page_tells_of_every_metric_transition_and_field() -> None:
    page = PAGE.read_text()
    suffixes = ("_bucket", "_sum", "_count", "_created")
    names = {each.name for each in everything()}
    families = {re.sub(f"({'|'.join(suffixes)})$", "", name) for name in names}
    words = families | {f"`{each.value}`" for each in Transition} | {f"`{each}`" for each in FIELDS}
    assert {each for each in words if each not in page} == set()
    asked = set(re.findall(r"\bdispatcher_\w+", page))
    assert asked <= names | families


def test_the_dashboard_shows_transitions_and_outcomes_that_there_are() -> None:
    words = {each.value for each in Transition}
    for text in expressions():
        for _, said in re.findall(r"transition=(~?)\"([^\"]*)\"", text):
            assert set(said.split("|")) <= words, text


def total(metric: Collector, ending: str, label: str) -> float:
    """Return what a metric has counted for one value of its labels."""
    found = [each for each in samples(metric) if each.name.endswith(ending)]
    return float(sum(each.value for each in found if label in each.labels.values()))


def test_lateness_is_that_of_the_first_hand_over() -> None:
    journal = App(Settings.load(metrics_port=0)).journal
    before = total(meter.LATENESS, "_count", "x")
    journal.attempted(a_message(channel="x", attempt_count=1), "temporary", 0.5)
    journal.attempted(a_message(channel="x", attempt_count=2), "sent", 60.0)
    assert total(meter.LATENESS, "_count", "x") == before + 1


@pytest.mark.parametrize(
    ("error", "reason"), [(DispatcherError, "other"), (StoreUnavailable, "unavailable")]
)
def test_a_refusal_is_counted_by_its_reason(error: type[DispatcherError], reason: str) -> None:
    before = total(meter.REFUSED, "_total", reason)
    App(Settings.load(metrics_port=0)).journal.refused(error("why"))
    assert total(meter.REFUSED, "_total", reason) == before + 1


def test_vitals_are_read_no_more_than_a_tenth_of_the_time() -> None:
    clock = MovableClock()
    looks: list[float] = []

    def look() -> Vitals:
        looks.append(clock.monotonic())
        clock.advance(timedelta(seconds=2))
        return VITALS

    collector = VitalsCollector(look, clock=clock)
    for _ in range(10):
        list(collector.collect())
        clock.advance(timedelta(seconds=4))
    assert looks[1] - looks[0] >= 20
    assert len(looks) == 2 or len(looks) == 3


def test_what_the_store_does_not_tell_is_left_out() -> None:
    def look() -> Vitals:
        raise StoreUnavailable("it is away")

    assert list(VitalsCollector(look, clock=MovableClock()).collect()) == []
    silent = Vitals(
        messages={}, overdue=0, longest_overdue=timedelta(0), duties=None, workers=None, beats=None
    )
    names = {e.name for e in samples(VitalsCollector(lambda: silent, clock=MovableClock()))}
    assert names == {"dispatcher_overdue_messages", "dispatcher_oldest_overdue_seconds"}


def test_a_port_that_is_taken_is_named() -> None:
    first, second = (Exposition(lambda: VITALS, clock=MovableClock()) for _ in range(2))
    port = first.serve("127.0.0.1", 0)
    try:
        with pytest.raises(InvalidSettings, match=f"port {port} cannot be had") as caught:
            second.serve("127.0.0.1", port)
        assert caught.value.field == "metrics_port"
    finally:
        first.close()


def test_without_a_port_the_library_is_not_even_loaded() -> None:
    program = (
        "import sys; from dispatcher import Settings; from dispatcher.app import App; "
        "parts = App(Settings.load()); parts.journal; parts.submitter; "
        "sys.exit('prometheus_client' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], env=child_environment(), check=True)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dispatcher.telemetry.metrics.meter")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidSettings, match="needs prometheus_client") as caught:
        App(Settings.load(metrics_port=0)).journal  # noqa: B018 - it is built
    assert caught.value.accepted.startswith("pip install 'dispatcher[metrics]'")
