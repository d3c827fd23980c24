"""Probes: alive while the main loop turns, ready while its servers answer; and signs of life."""

from __future__ import annotations

import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from celery import beat
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import Settings
from dispatcher.app import App
from dispatcher.celery import tasks
from dispatcher.celery.configuration import create_app
from dispatcher.celery.consumer import Scheduler
from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.keys import LooseKeys, all_of
from dispatcher.telemetry.liveness import (
    BROKER,
    HANGS_AFTER,
    LOST_AFTER,
    Health,
    Kind,
    Pulse,
    Signs,
)
from dispatcher.telemetry.prometheus import Exposition
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.times.zones import database
from tests.support.clock import MovableClock
from tests.support.environment import broker_on
from tests.support.proxy import FarDatabase, Proxy
from tests.support.rabbitmq import ADDRESS, url_at
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

LONG = HANGS_AFTER + timedelta(seconds=1)
RECONNECTS = timedelta(seconds=10)
PROBES = 30


class Server:
    """Stands for a server that answers, is away, or hangs."""

    def __init__(self) -> None:
        self.is_away = False
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1
        self.answers.wait()
        if self.is_away:
            raise ConnectionError("redis://:canary-password@away")


def health_of(clock: Clock, **servers: Server) -> Health:
    """Return health that waits as long as a slow machine takes."""
    asks = {name: server.ask for name, server in servers.items()}
    return Health(asks, clock=clock, patience=timedelta(minutes=1))


@contextmanager
def served(health: Health) -> Iterator[str]:
    """Serve it; yield host and port."""
    unused = Mock(side_effect=AssertionError("a probe reads no vitals"))
    exposition = Exposition(unused, health, "127.0.0.1", 0, SystemClock())
    try:
        yield f"127.0.0.1:{exposition.port}"
    finally:
        exposition.close()


def answer(address: str, path: str, *, seconds: float = 30) -> tuple[int, str]:
    asked = f"http://{address}{path}"
    try:
        with urllib.request.urlopen(asked, timeout=seconds) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("redis_is_away", [False, True])
def test_a_loop_that_stands_still_is_not_alive(redis_is_away: bool) -> None:
    clock, redis = MovableClock(), Server()
    redis.is_away = redis_is_away  # that excuses nothing
    health = health_of(clock, broker=Server(), redis=redis)
    clock.advance(HANGS_AFTER)
    with served(health) as address:
        assert answer(address, "/livez") == (200, "alive\n")
        clock.advance(timedelta(seconds=1))
        assert answer(address, "/livez")[0] == 200, "its broker may have come back just now"
        clock.advance(RECONNECTS)
        still = "not alive: the main loop has stood still for 71 s\n"
        assert answer(address, "/livez") == (503, still)
        health.turned()
        assert answer(address, "/livez")[0] == 200


def test_an_outage_that_no_probe_has_seen_is_no_hanging() -> None:
    clock = MovableClock()
    health = health_of(clock, broker=Server())
    for _ in range(3):  # outages, each over a moment before a probe
        clock.advance(10 * HANGS_AFTER)
        assert health.hangs_for() is None
        clock.advance(timedelta(seconds=2))
        health.turned()


def test_a_loop_that_waits_for_its_broker_is_alive_and_has_time_to_come_back() -> None:
    clock, broker = MovableClock(), Server()
    health = health_of(clock, broker=broker)
    broker.is_away = True
    for _ in range(5):
        clock.advance(LONG)
        assert health.hangs_for() is None
    broker.is_away = False
    clock.advance(HANGS_AFTER)
    assert health.hangs_for() is None, "it may not have noticed yet"
    clock.advance(timedelta(seconds=1))
    assert health.hangs_for() is None
    clock.advance(RECONNECTS)
    assert health.hangs_for() == LONG + RECONNECTS, "its broker is back for long"


def test_a_broker_that_answers_but_takes_no_task_is_away() -> None:
    clock = MovableClock()
    health = health_of(clock, broker=Server())

    def publish() -> None:
        clock.advance(timedelta(seconds=4))
        assert health.away() == []
        clock.advance(LONG)
        assert health.away() == [BROKER]
        assert health.hangs_for() is None

        raise ConnectionError

    with pytest.raises(ConnectionError):
        health.turning()(health.publishing()(publish))()
    clock.advance(timedelta(seconds=10))
    assert health.away() == [], "one that has failed hangs no longer"


def test_a_beat_tells_of_each_tick_and_of_a_publish_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = MovableClock()
    health = health_of(clock, broker=Server())
    parts = SimpleNamespace(
        pulse=SimpleNamespace(start=lambda *_: None), serve_metrics=lambda _: health
    )
    monkeypatch.setattr(tasks, "here", lambda: parts)
    service: Any = beat.Service(create_app(Settings.load()), scheduler_cls=Scheduler)
    states: list[tuple[Sequence[str], timedelta | None]] = []

    def publish(*_: object, **__: object) -> None:
        clock.advance(LONG)
        states.append((health.away(), health.hangs_for()))

    monkeypatch.setattr(Scheduler, "apply_async", publish)
    vars(service.scheduler)["producer"] = None  # else it connects
    tasks.beat_is_ready(sender=service)
    wait_until(lambda: service.scheduler.tick() is None or states)
    assert states == [([BROKER], None)]
    assert health.away() == []
    clock.advance(LONG)
    assert health.hangs_for() is None, "it may be the broker"
    clock.advance(RECONNECTS)
    assert health.hangs_for() == LONG + RECONNECTS
    service.scheduler.tick()
    assert health.hangs_for() is None


def test_a_server_that_hangs_costs_one_thread_however_often_it_is_asked() -> None:
    broker, redis = Server(), Server()
    asks = {BROKER: broker.ask, "redis": redis.ask}
    health = Health(asks, clock=SystemClock(), patience=timedelta(milliseconds=10))
    with served(health) as address:
        redis.answers.clear()
        before = threading.active_count()
        for _ in range(PROBES):
            status, text = answer(address, "/readyz")
            assert status == 503
            assert "redis" in text
        assert redis.asked == 1
        wait_until(lambda: threading.active_count() <= before + 1)
        assert answer(address, "/livez")[0] == 200
        redis.answers.set()
        wait_until(lambda: answer(address, "/readyz")[0] == 200)


def test_an_answer_names_servers_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    redis = Server()
    health = health_of(MovableClock(), broker=Server(), redis=redis)
    with served(health) as address, caplog.at_level(logging.DEBUG):
        assert answer(address, "/readyz?verbose") == (200, "ready: broker, redis\n")
        redis.is_away = True
        for _ in range(3):
            assert answer(address, "/readyz") == (503, "not ready: no answer from redis\n")
        redis.is_away = False
        assert answer(address, "/readyz")[0] == 200
    said = [record.message for record in caplog.records if record.levelno >= logging.INFO]
    assert said == ["not ready: no answer from redis", "ready: every server answers"]
    assert "canary" not in caplog.text


def test_only_three_paths_are_answered() -> None:
    with served(health_of(MovableClock())) as address:
        for path in ("/", "/health", "/livez/", "/metrics2", "/%2e%2e/metrics"):
            assert answer(address, path)[0] == 404, path
        assert answer(address, "/livez") == (200, "alive\n")


def test_a_client_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.telemetry.prometheus._Handler.timeout", 0.05)
    with served(health_of(MovableClock())) as address:
        silent = HTTPConnection(address)
        silent.connect()
        assert silent.sock.recv(1) == b"", "its thread has ended"
        silent.close()
        assert answer(address, "/livez")[0] == 200


@contextmanager
def made(**settings: Any) -> Iterator[App]:
    app = App(Settings.load(**settings))
    try:
        yield app
    finally:
        app.close()


def refuses_hangs_and_comes_back(app: App, name: str, proxy: Proxy) -> None:
    health = app.health(Kind.WORKER)

    def is_away(*names: str) -> None:
        wait_until(lambda: health.away() == [*names])

    is_away()
    before = proxy.accepted
    for _ in range(10):
        is_away()
    assert proxy.accepted < before + 10, "its connection is kept"
    proxy.cut_all()
    is_away()
    proxy.refuse()
    proxy.cut_all()
    is_away(name)
    proxy.pass_all()
    is_away()
    proxy.blackhole()
    is_away(name)
    proxy.pass_all()
    is_away()


@pytest.mark.parametrize("far", ["postgresql"], indirect=True)
def test_a_database_that_refuses_hangs_and_comes_back(
    far: FarDatabase, redis_server: RedisServer
) -> None:
    addresses = {"redis_url": redis_server.url, "broker_url": broker_on(redis_server.url)}
    with made(database_url=far.through, **addresses) as app:
        refuses_hangs_and_comes_back(app, "database", far.proxy)


def test_a_rabbitmq_that_refuses_hangs_and_comes_back(
    rabbitmq: str, redis_server: RedisServer, sqlite_template: Path
) -> None:
    with (
        Proxy(ADDRESS) as proxy,
        made(
            broker_url=url_at(("127.0.0.1", proxy.port)),
            redis_url=redis_server.url,
            database_url=f"sqlite:///{sqlite_template}",
        ) as app,
    ):
        refuses_hangs_and_comes_back(app, BROKER, proxy)


SECOND = timedelta(seconds=1)


@pytest.fixture
def signs(redis_client: redis.Redis) -> Signs:
    return Signs(redis_client, namespace="signs")


@pytest.fixture
def pulse(signs: Signs) -> Iterator[Pulse]:
    pulse = Pulse(signs, SystemClock())
    yield pulse
    pulse.stop()


def test_a_process_is_alive_for_a_while_after_its_last_sign(signs: Signs) -> None:
    signs.note(Kind.WORKER, {"here": 0 * SECOND, "there": LOST_AFTER + SECOND})
    here, there = signs.read()[Kind.WORKER]
    assert (here.name, here.is_alive) == ("here", True)
    assert (there.name, there.is_alive) == ("there", False)
    assert there.age >= LOST_AFTER
    assert signs.read()[Kind.BEAT] == ()


def test_the_latest_sign_holds_and_very_old_ones_are_forgotten(signs: Signs) -> None:
    clock = MovableClock()
    pulse = Pulse(signs, clock)
    pulse._done["catch_up"] = clock.monotonic() - 60
    pulse._say()
    signs.note(Kind.DUTY, {"rescue": 5 * SECOND})
    signs.note(Kind.DUTY, {"rescue": 50 * SECOND, "prune": timedelta(days=2)})
    catch_up, rescue = signs.read()[Kind.DUTY]
    assert (catch_up.name, rescue.name) == ("catch_up", "rescue")
    assert 60 * SECOND <= catch_up.age < 90 * SECOND
    assert 5 * SECOND <= rescue.age < 40 * SECOND


def test_a_process_says_that_it_lives_what_it_did_and_that_it_ended(
    signs: Signs, pulse: Pulse
) -> None:
    pulse.start(Kind.WORKER, "celery@here")
    pulse.done("rescue")
    wait_until(lambda: signs.read()[Kind.WORKER])
    [worker] = signs.read()[Kind.WORKER]
    assert worker.name == f"celery@here {os.getpid()}"
    assert worker.is_alive
    wait_until(lambda: signs.read()[Kind.ZONES])
    assert [sign.name for sign in signs.read()[Kind.ZONES]] == [database().version]
    pulse.stop()
    known = signs.read()
    assert known[Kind.WORKER] == ()
    assert [sign.name for sign in known[Kind.DUTY]] == ["rescue"]


def test_nothing_waits_for_a_redis_that_is_away_and_signs_go_on(
    signs: Signs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.telemetry.liveness.EVERY", SECOND / 50)
    client = redis.Redis(port=1, retry=Retry(NoBackoff(), 0))
    away = Signs(client, namespace="signs")
    pulse = Pulse(away, SystemClock())
    pulse.start(Kind.BEAT, "beat@here")
    pulse.done("rescue")
    with pytest.raises(ReservationsUnavailable):
        away.read()
    away._client = signs._client
    wait_until(lambda: signs.read()[Kind.BEAT])
    pulse.stop()


def test_a_rebuild_leaves_signs_alone() -> None:
    glob = all_of("signs").rstrip("*")
    assert not LooseKeys("signs").signs(Kind.WORKER).startswith(glob)
