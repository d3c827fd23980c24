"""The version before this one and this one, side by side: an upgrade without a stop."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from dispatcher import Settings
from tests.acceptance.conftest import show_logs_of_failure
from tests.support import submitting
from tests.support.environment import (
    Environment,
    broker_on,
    child_environment,
    dispatcher_command,
    short_settings,
)
from tests.support.previous import Previous, previous
from tests.support.processes import ran
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

RATE = 250
"""Submits a second of one process; a slow machine makes fewer."""
ALONE, TOGETHER = 300, 2_000
"""How many messages are accepted from each process: beside no other version, and in each stage."""


class Submitter:
    def __init__(self, name: str, command: Sequence[str], seed: int, settings: Settings) -> None:
        self.file = settings.data_dir / f"submits-{name}"
        log = (settings.data_dir / f"submitter-{name}.log").open("wb")
        self._process = subprocess.Popen(
            [*command, "-m", submitting.__name__, str(self.file), str(RATE), str(seed)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=settings.data_dir,
            env=child_environment(settings),
        )
        log.close()

    def flow(self, count: int) -> None:
        enough = self._accepted() + count
        while (seen := self._accepted()) < enough:
            wait_until(lambda: self._accepted() > seen, every=0.1)

    def stop(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        assert self._process.wait(60) == 0

    def told(self) -> tuple[Path, list[UUID]]:
        """Return where its package lies, and what was accepted."""
        package, *ids = self.file.read_text().splitlines()
        return Path(package), [UUID(line) for line in ids]

    def _accepted(self) -> int:
        assert self._process.poll() is None, "a submit has failed"
        return self.file.read_text().count("\n") - 1 if self.file.exists() else 0


@pytest.fixture
def before(folder: Path) -> Previous:
    """Give the previous version; skip where no migration leads from its schema to this one's."""
    made = previous(folder / "previous")
    if edited := made.edited_migrations():
        pytest.skip(
            f"{made.revision} and this version have different migrations of one name: "
            f"{', '.join(edited)}. No database can be upgraded from there"
        )
    return made


@pytest.fixture
def settings(folder: Path, own_redis: RedisServer, postgres: PostgresServer) -> Iterator[Settings]:
    database = postgres.create_database()
    yield short_settings(
        folder,
        database_url=postgres.url(database),
        redis_url=own_redis.url,
        broker_url=broker_on(own_redis.url),
        claim_ttl=20,
        transport_timeout=10,
        redelivery_timeout=60,
    )
    postgres.drop_database(database)


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.timeout(900)
def test_two_versions_side_by_side_lose_and_refuse_nothing(
    request: pytest.FixtureRequest, settings: Settings, before: Previous, stack: ExitStack
) -> None:
    folder, env = settings.data_dir, child_environment(settings)

    def run(command: Sequence[str]) -> str:
        return ran(*command, cwd=folder, env=env, check=True).stdout

    def running(services: dict[str, Sequence[str]]) -> Environment:
        made = Environment(folder, settings, services)
        stack.callback(show_logs_of_failure, request.node, made)
        return stack.enter_context(made)

    def submitter(name: str, command: Sequence[str], seed: int) -> Submitter:
        made = Submitter(name, command, seed, settings)
        stack.callback(made.stop)
        return made

    place = run(before.command("-c", "import dispatcher; print(dispatcher.__file__)"))
    assert Path(place.strip()).is_relative_to(before.folder), "the installed package wins"

    run(before.command("-m", "dispatcher", "migrate"))
    old = running({
        "old-worker": before.command("-m", "dispatcher", "worker"),
        "old-beat": before.command("-m", "dispatcher", "beat"),
    })  # fmt: skip
    of_old = submitter("old", before.command(), 1)
    of_old.flow(ALONE)

    run(dispatcher_command("migrate"))
    new = running({"worker": dispatcher_command("worker"), "beat": dispatcher_command("beat")})
    of_new = submitter("new", [sys.executable], 2)
    seen = [sent(folder / "old-worker.log"), sent(folder / "worker.log")]
    for each in (of_old, of_new):
        each.flow(TOGETHER)
    assert sent(folder / "old-worker.log") > seen[0], "both versions deliver"
    assert sent(folder / "worker.log") > seen[1], "both versions deliver"

    old.stop("old-worker")
    old.stop("old-beat")
    for each in (of_old, of_new):
        each.flow(ALONE)
    of_old.stop()
    of_new.stop()
    new.wait_until_ended()

    (old_package, by_old), (new_package, by_new) = of_old.told(), of_new.told()
    assert old_package.is_relative_to(before.folder)
    assert not new_package.is_relative_to(before.folder)
    new.check(by_old + by_new)
    assert {row.status for row in new.rows()} == {"sent"}
    assert old.restarts == new.restarts == 0


def sent(log: Path) -> int:
    return log.read_text().count(" sent channel=") if log.exists() else 0
