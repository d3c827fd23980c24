"""Other ways to start: Celery's own commands, and several workers on one host."""

from __future__ import annotations

import sys

import pytest

from dispatcher.telemetry.liveness import Kind
from tests.support.environment import Environment, Maker, dispatcher_command
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

MESSAGES = 60
APP = ("-A", "dispatcher.celery_app")
CELERY = (sys.executable, "-m", "celery", *APP)

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


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


@on_sqlite
def test_workers_of_one_host_share_a_rabbitmq(
    environment: Maker, rabbitmq: str, own_queue: str
) -> None:
    """RabbitMQ locks the queue for remote control by the name of a worker's node."""
    worker = dispatcher_command("worker", "--concurrency=2")
    services = {"worker-1": worker, "worker-2": worker, "beat": dispatcher_command("beat")}
    running = environment(queue=own_queue, broker_url=rabbitmq, services=services)
    signs = running.dispatcher._app.signs

    def nodes() -> set[str]:
        return {each.name.split()[0] for each in signs.read()[Kind.WORKER] if each.is_alive}

    wait_until(lambda: len(nodes()) == 2)
    deliver_some(running)
    assert "RESOURCE_LOCKED" not in running.logs()


def deliver_some(running: Environment) -> None:
    """Half of them near, half beyond the horizon."""
    accepted = [
        running.submit(f"person-{number}", 1.5 + 5 * number / MESSAGES)
        for number in range(MESSAGES)
    ]
    running.wait_until_ended()
    running.check(accepted)
