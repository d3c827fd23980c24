"""Whole workers that are told to stop."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
import redis

from tests.support.environment import CHANNEL, SERVICES, Environment, Maker
from tests.support.history import read
from tests.support.ledger import Ledger
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

SEND_SECONDS = 1.0
"""A grace that service managers give; Celery's own soft shutdown may last as long."""
PREFORK = [
    *(sys.executable, "-m", "celery", "-A", "dispatcher.celery_app", "worker"),
    *("--pool=prefork", "--concurrency=2", "--loglevel=INFO"),
]
"""A worker whose main process is told to stop, and whose children send."""


class Closing(Ledger):
    """A ledger that notes which processes closed it, and how many lines it had by then."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._written = Path(path)

    def close(self) -> None:
        with self._written.with_suffix(".closed").open("a") as file:
            file.write(f"{os.getpid()} {len(read(self._written))}\n")


def channel_with(folder: Path, **more: object) -> dict[str, object]:
    transport = f"{__name__}:Closing"
    options = {"path": str(folder / "ledger")}
    return {CHANNEL: {"transport": transport, "options": options, "max_attempts": 20, **more}}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_told_to_stop_ends_its_send_and_puts_back_the_rest_of_its_group(
    environment: Maker, folder: Path, pool: str
) -> None:
    worker = SERVICES["worker"] if pool == "threads" else PREFORK
    running = environment(
        services={"worker": worker, "beat": SERVICES["beat-1"]},
        channels=channel_with(folder, senders=1),
        claim_ttl=10,
    )
    at = datetime.now(UTC) + timedelta(seconds=4)  # a busy machine is slow to accept them
    body = {"seconds": SEND_SECONDS}
    group = [running.submit(f"p-{n}", send_at=at, body=body) for n in range(4)]
    wait_until(running.ledger)
    running.stop("worker")
    standing = running.stored()
    begun = {UUID(line["id"]) for line in running.ledger()}
    assert 1 <= len(begun) < len(group), "in the midst of a group"
    for message in group:
        status = standing.rows[str(message.id)]["status"]
        tries = [attempt["outcome"] for attempt in standing.attempts.get(str(message.id), ())]
        expected = ("sent", ["sent"]) if message.id in begun else ("scheduled", [])
        assert (status, tries) == expected
    assert permits(running) == begun, "what was put back gave its permit back"
    running.up("worker")
    running.wait_until_ended()
    running.check(group)
    lasting = running.submit("lasting", body={"seconds": 2 * SEND_SECONDS})
    ours = str(lasting.id)
    begun_at = wait_until(lambda: next((line["at"] for line in running.ledger()
                                        if line["id"] == ours), 0), 15)  # fmt: skip
    wait_until(lambda: time.time() - begun_at / 1e6 > SEND_SECONDS / 2)
    running.stop("worker")  # its task has ended, its send has not
    running.check([*group, lasting])
    [closed] = (folder / "ledger.closed").read_text().splitlines()[-1:]
    assert int(closed.split()[1]) == len(running.ledger()), "closed after its sends"
    if pool == "threads":
        sends = running.settings.data_dir / f"sends.{running.settings.namespace}"
        assert not sends.exists() or [*sends.iterdir()] == [], "nothing is left for the rescue"
        grace = f"end within {running.settings.stop_grace.total_seconds():g} s"
        assert grace in (folder / "worker.log").read_text()
    for tries in running.stored().attempts.values():
        assert [attempt["outcome"] for attempt in tries] == ["sent"]


def permits(running: Environment) -> set[UUID]:
    scopes = f"{{{running.settings.namespace}:permits:*:log:scope:*"
    with redis.Redis.from_url(running.settings.redis_url) as client:
        logs = [client.zrange(key, 0, -1) for key in client.scan_iter(match=scopes)]
    return {UUID(bytes=member[:16]) for log in logs for member in cast("list[bytes]", log)}
