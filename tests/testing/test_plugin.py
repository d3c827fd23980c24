"""The pytest plugin: found by its entry point, light where it is not used, and easy to override."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.processes import pytest_in
from tests.support.soak import a_third_of

HEAVY = "dispatcher celery kombu pydantic redis sqlalchemy"


def ran(folder: Path, *options: str, **modules: str) -> CompletedProcess[str]:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return pytest_in(folder, "-s", *options)


def test_a_run_that_does_not_use_it_imports_nothing_heavy(tmp_path: Path) -> None:
    looks = f"""
import sys
def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("quota_dispatcher")
    assert "quota_dispatcher_pytest" in sys.modules
    assert not sys.modules.keys() & set({HEAVY!r}.split())
"""
    done = ran(tmp_path, test_it=looks)
    assert done.returncode == 0, done.stdout


def test_the_fixtures_are_parts_of_one_dispatcher_that_is_new_for_each_test(
    tmp_path: Path,
) -> None:
    uses = """
import datetime, pytest
from dispatcher import Settings
from dispatcher.testing import MemoryDispatcher

@pytest.fixture
def memory_dispatcher():
    settings = Settings.load(quotas="1/day", channels={"sms": {"transport": "memory"}})
    with MemoryDispatcher(settings) as made:
        yield made

@pytest.mark.parametrize("_", range(2))
def test_it(_, dispatcher, outbox, travel):
    dispatcher.submit(
        channel="sms", recipient="ada", body={}, send_in=datetime.timedelta(days=3)
    )
    travel(days=3)
    assert len(outbox) == 1
"""
    done = ran(tmp_path, test_it=uses)
    assert "2 passed" in done.stdout, done.stdout


def test_a_fixture_of_the_project_takes_the_place_of_ours(tmp_path: Path) -> None:
    conftest = """
import pytest

@pytest.fixture
def dispatcher():
    return "theirs"
"""
    uses = """
def test_it(dispatcher, travel, memory_dispatcher):
    assert dispatcher == "theirs"
    assert travel is memory_dispatcher.travel
"""
    done = ran(tmp_path, conftest=conftest, test_it=uses)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.long
def test_it_can_be_left_out(tmp_path: Path) -> None:
    done = ran(tmp_path, "-p", "no:quota_dispatcher", test_it="def test_it(travel): ...")
    assert "fixture 'travel' not found" in done.stdout


@pytest.mark.parametrize(
    "command", a_third_of([["-m", "pytest"], []]), ids=["python -m pytest", "pytest"]
)
def test_a_project_with_a_package_of_that_name_runs_its_tests(
    tmp_path: Path, command: list[str]
) -> None:
    """The promise: to install the distribution breaks no run of pytest."""
    (tmp_path / "dispatcher").mkdir()
    (tmp_path / "dispatcher" / "__init__.py").write_text('WHOSE = "theirs"')
    (tmp_path / "test_theirs.py").write_text("""
import dispatcher
def test_theirs():
    assert dispatcher.WHOSE == "theirs"
def test_ours(travel): ...
""")
    start = [sys.executable, *command] if command else [Path(sys.executable).with_name("pytest")]
    done = pytest_in(tmp_path, start=start)
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    told = done.stdout.replace("\n", " ")
    assert f"here dispatcher is {tmp_path / 'dispatcher' / '__init__.py'}" in told
