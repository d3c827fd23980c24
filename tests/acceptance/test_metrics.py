"""A real worker answers Prometheus with what all its processes counted."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.test_health import address
from tests.support.environment import CHANNEL, Maker, dispatcher_command
from tests.support.waiting import wait_until

MANY = 12


def scraped(address: str) -> Mapping[tuple[str, frozenset[Any]], float]:
    url = f"http://{address}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (each.name.removeprefix("dispatcher_"), frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_tells_what_all_its_processes_counted(
    environment: Maker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    services = {
        "worker": dispatcher_command(
            "worker", "--metrics-port=0", "--pool=prefork", "--concurrency=2"
        ),
        "beat-1": dispatcher_command("beat"),
    }
    running = environment(services=services, quotas="100/second")
    for number in range(MANY):
        running.submit(f"person {number}")
    running.wait_until_ended()
    url = wait_until(lambda: address(folder, "worker"))
    assert url is not None

    def value(name: str, **labels: str) -> float:
        return scraped(url).get((name, frozenset(labels.items())), 0.0)

    wait_until(lambda: value("transitions_total", transition="sent", channel=CHANNEL) == MANY)
    assert value("attempts_total", channel=CHANNEL, outcome="sent") == MANY
    assert value("lateness_seconds_count", channel=CHANNEL) == MANY
    wait_until(lambda: value("sweep_runs_total", duty="rescue", result="done") >= 2)
    wait_until(lambda: value("workers") == 1)
    wait_until(lambda: 0 <= value("sweep_age_seconds", duty="rescue") < 10)  # after each turn
    assert value("overdue_messages") == 0
    names = {name for name, _ in scraped(url)}
    assert {"process_cpu_seconds_total", "oldest_overdue_seconds"} <= names
    assert list(folder.glob("dispatcher-metrics-*"))
    running.stop("worker")
    assert not list(folder.glob("dispatcher-metrics-*")), "it takes its counters along"
