"""Both brokers: submitted, delivered, a worker killed, lines to brokers cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.telemetry.liveness import Kind
from tests.support.environment import SERVICES, Environment, Maker
from tests.support.proxy import Proxy
from tests.support.rabbitmq import ADDRESS, url_at
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long
MESSAGES = 24


@pytest.fixture
def to_rabbitmq(rabbitmq: str) -> Iterator[Proxy]:
    assert rabbitmq
    with Proxy(ADDRESS) as proxy:
        yield proxy


@pytest.fixture
def to_redis() -> Iterator[Proxy]:
    with RedisServer() as server, Proxy(server.socket) as proxy:
        yield proxy


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_redis_carries_the_tasks(environment: Maker, to_redis: Proxy) -> None:
    broker_url = f"redis://127.0.0.1:{to_redis.port}/0"
    goes_through_it_all(started(environment, broker_url=broker_url), to_redis)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_rabbitmq_carries_the_tasks(environment: Maker, to_rabbitmq: Proxy, own_queue: str) -> None:
    broker_url = url_at(("127.0.0.1", to_rabbitmq.port))
    running = started(environment, broker_url=broker_url, queue=own_queue)
    goes_through_it_all(running, to_rabbitmq)
    assert "RESOURCE_LOCKED" not in running.logs(), "nodes of one host have names of their own"
    assert "delayed delivery" not in running.logs().lower(), "workers keep the ETAs themselves"


def started(environment: Maker, **settings: object) -> Environment:
    worker = SERVICES["worker"]
    services = {"worker": worker, "worker-2": worker, "beat": SERVICES["beat-1"]}
    running = environment(services=services, horizon=2, **settings)
    signs = running.dispatcher._app.signs

    def nodes() -> set[str]:
        return {sign.name.split()[0] for sign in signs.read()[Kind.WORKER] if sign.is_alive}

    wait_until(lambda: len(nodes()) == 2)
    return running


def goes_through_it_all(running: Environment, broker: Proxy) -> None:
    """Half of the messages are near, half beyond the horizon; the worker dies in their midst."""
    accepted = [
        running.submit(f"person-{number}", 0.5 + 4 * number / MESSAGES)
        for number in range(MESSAGES)
    ]
    wait_until(lambda: len(running.ledger()) > MESSAGES / 3)
    broker.cut_all()
    wait_until(lambda: len(running.ledger()) > MESSAGES)
    running.kill("worker")
    running.wait_until_ended()
    assert running.restarts == 1, "the worker that was killed, and no other"
    running.check(accepted)
