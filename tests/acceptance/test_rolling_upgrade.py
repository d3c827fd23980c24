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
from tests.support.previous import command_of_previous, unpack_previous
from tests.support.processes import ran
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

ALONE, TOGETHER = 300, 2_000
"""How many messages each process submits: beside no other version, and beside one."""


class Submitter:
    """A process that submits when it is told to, by one version from its first to its last."""

    def __init__(self, command: Sequence[str], settings: Settings) -> None:
        self.accepted: list[UUID] = []
        self._process = subprocess.Popen(
            [*command, "-m", submitting.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=settings.data_dir,
            env=child_environment(settings),
        )
        self.package = Path(self._said())

    def begin(self, count: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Wait until what was begun is submitted."""
        self.accepted += [UUID(line) for line in iter(self._said, "")]

    def stop(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a submit has failed"
        return line.strip()


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


@pytest.mark.timeout(900)
def test_two_versions_side_by_side_lose_and_refuse_nothing(
    request: pytest.FixtureRequest, settings: Settings
) -> None:
    folder, before = settings.data_dir, settings.data_dir / "previous"
    unpack_previous(before)
    previous = command_of_previous(before)

    def migrate(command: Sequence[str]) -> None:
        ran(*command, "migrate", cwd=folder, env=child_environment(settings), check=True)

    with ExitStack() as stack:

        def running(services: dict[str, Sequence[str]]) -> Environment:
            made = Environment(folder, settings, services)
            stack.callback(show_logs_of_failure, request.node, made)
            return stack.enter_context(made)

        old_dispatcher = [*previous, "-m", "dispatcher"]
        migrate(old_dispatcher)
        old = running(
            {"old-worker": [*old_dispatcher, "worker"], "old-beat": [*old_dispatcher, "beat"]}
        )
        by_old = Submitter(previous, settings)
        stack.callback(by_old.stop)
        by_old.begin(ALONE)
        migrate(dispatcher_command())
        by_old.finish()

        new = running({"worker": dispatcher_command("worker"), "beat": dispatcher_command("beat")})
        by_new = Submitter([sys.executable], settings)
        stack.callback(by_new.stop)
        assert by_old.package.is_relative_to(before), "the installed package wins"
        assert not by_new.package.is_relative_to(before)
        logs = [folder / "old-worker.log", folder / "worker.log"]
        seen = [sent(log) for log in logs]
        submit_by(by_old, by_new, count=TOGETHER)
        wait_until(lambda: all(map(int.__gt__, map(sent, logs), seen)))  # both versions deliver

        old.stop("old-worker")
        old.stop("old-beat")
        submit_by(by_old, by_new, count=ALONE)
        new.wait_until_ended()
        new.check(by_old.accepted + by_new.accepted)
        assert {row.status for row in new.rows()} == {"sent"}
        assert old.restarts == new.restarts == 0


def submit_by(*submitters: Submitter, count: int) -> None:
    for submitter in submitters:
        submitter.begin(count)
    for submitter in submitters:
        submitter.finish()


def sent(log: Path) -> int:
    return log.read_text().count(" sent channel=") if log.exists() else 0
