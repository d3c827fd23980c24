"""Other brokers and other ways to start: RabbitMQ, and Celery's own commands."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from kombu import Connection, Exchange, Queue

from tests.support.environment import CHANNEL, Environment, Maker

RABBITMQ = ("127.0.0.1", 5672)
MESSAGES = 60
APP = ("-A", "dispatcher.celery_app")
CELERY = (sys.executable, "-m", "celery", *APP)

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def rabbitmq() -> str:
    """Give the URL of a RabbitMQ."""
    try:
        socket.create_connection(RABBITMQ, timeout=2).close()
    except OSError as error:
        reason = f"no RabbitMQ on {RABBITMQ[0]}:{RABBITMQ[1]} ({error})"
        if "rabbitmq" in os.environ.get("DISPATCHER_TESTS_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)
    return f"amqp://guest:guest@{RABBITMQ[0]}:{RABBITMQ[1]}//"


@pytest.fixture
def own_queue(rabbitmq: str) -> Iterator[str]:
    """Give a name that no other queue has; what is declared under it is deleted."""
    name = f"dispatcher-test-{uuid4().hex}"
    yield name
    with Connection(rabbitmq) as connection, connection.channel() as channel:
        Queue(name, channel=channel).delete()
        Exchange(name, channel=channel).delete()


@on_sqlite
def test_rabbitmq_carries_the_tasks(environment: Maker, rabbitmq: str, own_queue: str) -> None:
    running = environment(broker_url=rabbitmq, queue=own_queue)
    deliver_some(running)
    assert running.restarts == 0


@on_sqlite
def test_celerys_own_commands_start_worker_and_beat(environment: Maker) -> None:
    running = environment(
        services={
            "worker": [*CELERY, "worker", "--concurrency=2", "--loglevel=INFO"],
            "beat-1": [*CELERY, "beat"],
            "beat-2": [*CELERY, "beat"],
        }
    )
    deliver_some(running)
    assert running.restarts == 0


def deliver_some(running: Environment) -> None:
    """Half of them near, half beyond the horizon."""
    start = datetime.now(UTC) + timedelta(seconds=1.5)
    accepted = [
        running.dispatcher.submit(
            channel=CHANNEL,
            recipient=f"person-{number}",
            body={},
            send_at=start + timedelta(seconds=5 * number / MESSAGES),
        )
        for number in range(MESSAGES)
    ]
    running.wait_until_ended(15)
    running.check(accepted)
