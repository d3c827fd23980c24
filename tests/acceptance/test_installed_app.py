"""A Celery app of the user's delivers, beside its own tasks, by Celery's own commands."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.test_health import address, says
from tests.support.environment import Maker
from tests.support.house_fixtures import on_sqlite
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


CELERY = (sys.executable, "-m", "celery", "-A", "shop")
SHOP = """
import os
from pathlib import Path
from uuid import uuid4

from celery import Celery

import dispatcher

settings = dispatcher.Settings.load()
for name in [name for name in os.environ if name.startswith("DISPATCHER_")]:
    del os.environ[name]  # from here on only what was handed to install counts

app = Celery("shop", broker=settings.broker_url)
app.conf.task_time_limit = 30
app.conf.beat_schedule = {"count": {"task": "shop.count", "schedule": 0.5}}
dispatcher.install(app, settings)


@app.task(name="shop.count")
def count() -> None:
    with Path("counted").open("a") as file:
        file.write("x")
"""


@on_sqlite
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_an_app_of_the_users_delivers_and_does_its_own_work(
    environment: Maker, folder: Path, pool: str
) -> None:
    (folder / "shop.py").write_text(SHOP)
    running = environment(queue="post", services=services(pool), metrics_port=0)
    accepted = [running.submit(f"person-{number}", 1 + number / 10) for number in range(20)]
    running.wait_until_ended()
    running.check(accepted)
    wait_until(lambda: len((folder / "counted").read_text()) > 1)
    assert running.restarts == 0
    assert "Traceback" not in running.logs()
    for name in ("worker", "beat"):
        wait_until(partial(address, folder, name))
        wait_until(partial(lambda name: says(folder, name, "/readyz")[0] == 200, name))
        assert says(folder, name, "/livez")[0] == 200


@on_sqlite
def test_a_beat_inside_a_worker_leaves_it_the_port(environment: Maker, folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    both = [*services("prefork")["worker"], "--beat", "--schedule=beat"]
    environment(queue="post", services={"worker": both}, metrics_port=0)
    log = folder / "worker.log"
    wait_until((folder / "counted").exists)  # so the beat has begun
    everything = (200, "ready: broker, redis, database\n")
    wait_until(lambda: says(folder, "worker", "/readyz") == everything)
    assert log.read_text().count("metrics ") == 1, "nobody else tried"


def services(pool: str) -> dict[str, list[str]]:
    worker = [*CELERY, "worker", f"--pool={pool}", "--concurrency=2", "--loglevel=INFO"]
    return {"worker": worker, "beat": [*CELERY, "beat", "--schedule=beat", "--loglevel=INFO"]}
