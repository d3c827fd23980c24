"""A real worker and beat answer probes, through outages and when they hang, and Prometheus."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.environment import CHANNEL, Maker, broker_on, dispatcher_command, frozen
from tests.support.hanging import HANGS_AFTER
from tests.support.house_fixtures import on_sqlite
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.telemetry.test_health import answer

HANGING = (sys.executable, "-m", "tests.support.hanging")
ALIVE = (200, "alive\n")
BOTH = ("worker", "beat")


def address(folder: Path, name: str) -> str | None:
    addresses = re.findall(r"metrics at http://(\S+)/metrics", (folder / f"{name}.log").read_text())
    return addresses[-1] if addresses else None


def says(folder: Path, name: str, path: str) -> tuple[int, str]:
    at = address(folder, name)
    assert at is not None
    return answer(at, path)


@pytest.mark.long
@on_sqlite
def test_worker_and_beat_are_alive_through_outages_and_not_when_they_hang(
    environment: Maker, folder: Path, own_broker: RedisServer, own_redis: RedisServer
) -> None:
    services = {
        "worker": [*HANGING, "worker", "--metrics-port=0", "--concurrency=2"],
        "beat": [*HANGING, "beat", "--metrics-port=0"],
    }
    running = environment(services=services, broker_url=broker_on(own_broker.url))
    wait_until(lambda: all(address(folder, name) for name in BOTH))
    wait_until(lambda: all(says(folder, name, "/readyz")[0] == 200 for name in BOTH))
    everything = (200, "ready: broker, redis, database\n")
    wait_until(lambda: says(folder, "worker", "/readyz") == everything)
    wait_until(lambda: says(folder, "beat", "/readyz") == (200, "ready: broker\n"))
    assert says(folder, "beat", "/metrics")[0] == 200

    own_redis.kill()
    no_redis = (503, "not ready: no answer from redis\n")
    wait_until(lambda: says(folder, "worker", "/readyz") == no_redis)
    wait_until(lambda: says(folder, "beat", "/readyz")[0] == 200)
    assert {says(folder, name, "/livez") for name in BOTH} == {ALIVE}
    own_redis.start()
    wait_until(lambda: says(folder, "worker", "/readyz")[0] == 200)

    own_broker.kill()
    no_broker = (503, "not ready: no answer from broker\n")
    for name in BOTH:
        wait_until(partial(lambda name: says(folder, name, "/readyz") == no_broker, name))
    until = time.monotonic() + 1.5 * HANGS_AFTER.total_seconds()

    def is_over() -> bool:
        assert {says(folder, name, "/livez") for name in BOTH} == {ALIVE}
        return time.monotonic() > until

    wait_until(is_over, every=0.1)
    own_broker.start()
    wait_until(lambda: all(says(folder, name, "/readyz")[0] == 200 for name in BOTH))
    assert running.restarts == 0

    for name in BOTH:
        os.kill(running.pid(name), signal.SIGUSR2)
    for name in BOTH:
        wait_until(partial(lambda name: says(folder, name, "/livez")[0] == 503, name))
        assert re.match("not alive: the main loop has stood still", says(folder, name, "/livez")[1])


@pytest.mark.long
@on_sqlite
def test_a_worker_of_processes_is_alive_before_its_broker_is_there_and_silent_when_stopped(
    environment: Maker, folder: Path, own_broker: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    worker = ["worker", "--metrics-port=0", "--pool=prefork", "--concurrency=1"]
    services = {
        "worker": dispatcher_command(*worker),
        "beat": dispatcher_command("beat", "--metrics-port=0"),
    }
    running = environment(services=services, broker_url=broker_on(own_broker.url))
    running.down("worker")
    own_broker.kill()
    (folder / "worker.log").write_text("")
    running.up("worker")
    wait_until(lambda: address(folder, "worker") is not None)
    wait_until(lambda: says(folder, "worker", "/readyz")[0] == 503)
    assert says(folder, "worker", "/livez") == ALIVE
    own_broker.start()
    wait_until(lambda: all(says(folder, name, "/readyz")[0] == 200 for name in BOTH))
    for name in BOTH:
        at = address(folder, name)
        assert at is not None
        with frozen(running.pid(name)), pytest.raises((URLError, TimeoutError)):
            answer(at, "/livez", seconds=0.5)
        assert says(folder, name, "/livez") == ALIVE


MANY = 12


def scraped(address: str) -> Mapping[tuple[str, frozenset[Any]], float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("dispatcher_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@on_sqlite
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
