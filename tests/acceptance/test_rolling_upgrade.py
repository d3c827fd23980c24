"""A worker of the version before and one of this version, side by side on this version's schema."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.environment import (
    ROOT,
    SERVICES,
    Environment,
    Maker,
    child_environment,
    dispatcher_command,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

BATCHES, BATCH, PAUSE_SECONDS = 100, 25, 0.1
MIGRATIONS = "migrations/versions"
SUBMIT = f"""
import time
from datetime import timedelta
from dispatcher import Dispatcher, Draft

with Dispatcher() as dispatcher:
    for batch in range({BATCHES}):
        drafts = [
            Draft(channel="ledger", recipient=f"%s {{batch}} {{number}}", body={{}},
                  send_in=timedelta(seconds=1))
            for number in range({BATCH})
        ]
        for answer in dispatcher.submit_many(drafts):
            print(getattr(answer, "id", repr(answer)), flush=True)
        time.sleep({PAUSE_SECONDS})
"""


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the source of the version before: the last commit but one that changed the package.

    ``DISPATCHER_TESTS_BEFORE`` names another one. Skip where there is none that can run on this
    schema: then the database is migrated once all workers of that version have ended.
    """
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no history of commits")
    versions = git("log", "-2", "--format=%H", "--", "dispatcher").split()
    revision = os.environ.get("DISPATCHER_TESTS_BEFORE", versions[-1])
    if revision == versions[0]:
        pytest.skip("no version before this one")
    changed = git("diff", "--name-status", "--diff-filter=a", revision, "HEAD", "--", MIGRATIONS)
    if changed:
        pytest.skip("a migration of the version before was edited: no release has it")
    folder = tmp_path_factory.mktemp("before")
    packed = folder / "before.tar"
    git("archive", f"--output={packed}", revision, "dispatcher", "migrations")
    shutil.unpack_archive(packed, folder, filter="data")
    return folder


def running_with(source: Path, *command: str) -> list[str]:
    """Return the command that runs with the dispatcher of this source."""
    path = os.pathsep.join([str(source), str(ROOT)])
    return ["env", f"PYTHONPATH={path}", *command]


def submitting(environment: Environment, source: Path, name: str) -> subprocess.Popen[str]:
    """Start a process that submits with the dispatcher of this source."""
    return subprocess.Popen(
        running_with(source, sys.executable, "-c", SUBMIT % name),
        env=child_environment(environment.settings), cwd=source, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_versions_lose_and_refuse_nothing(environment: Maker, before: Path) -> None:
    imported = [sys.executable, "-c", "import dispatcher; print(dispatcher.__file__)"]
    found = subprocess.run(
        running_with(before, *imported), env=child_environment(), cwd=before,
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(before))

    old = running_with(before, *dispatcher_command("worker", "--no-doctor"))
    running = environment(services={"worker-before": old, **SERVICES})
    with (
        submitting(running, before, "before") as theirs,
        submitting(running, ROOT, "now") as ours,
    ):
        wait_until(lambda: len(running.ledger()) > BATCHES * BATCH)
        running.stop("worker-before")  # as a roll-out ends it, while the load goes on
        answers = [*theirs.communicate()[0].split("\n"), *ours.communicate()[0].split("\n")]
    answers = [each for each in answers if each]
    assert [each for each in answers if "(" in each] == [], "none is refused"
    accepted = {UUID(each) for each in answers}
    assert len(accepted) == 2 * BATCHES * BATCH
    running.wait_until_ended()
    messages = [each for each in running.dispatcher.select() if each.id in accepted]
    assert len(messages) == len(accepted), "none is lost"
    running.check(messages)
    log = running.log("worker-before")
    assert " sent " in log, "the worker of the version before has sent some"
