"""Other ways to start: Celery's own commands."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest

from tests.support.environment import CHANNEL, Environment, Maker

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


def deliver_some(running: Environment) -> None:
    """Half of them near, half beyond the horizon."""
    accepted = [
        running.dispatcher.submit(
            channel=CHANNEL,
            recipient=f"person-{number}",
            body={},
            send_in=timedelta(seconds=1.5 + 5 * number / MESSAGES),
        )
        for number in range(MESSAGES)
    ]
    running.wait_until_ended()
    running.check(accepted)
