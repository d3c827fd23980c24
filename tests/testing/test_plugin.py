"""The pytest plugin: found by its entry point, light where it is not used, and easy to override."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.examples import a_third_of
from tests.support.processes import pytest_in

HEAVY = "dispatcher celery kombu pydantic redis sqlalchemy"
LOOKS = f"""
import sys
imported = sys.modules.keys() & set({HEAVY!r}.split())  # this file is collected first
def test_nothing_heavy_is_imported(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("quota_dispatcher")
    assert "quota_dispatcher_pytest" in sys.modules
    assert imported == set()
"""
USES = """
import datetime, pytest
from dispatcher import Settings
from dispatcher.testing import MemoryDispatcher

@pytest.fixture
def memory_dispatcher():
    settings = Settings.load(quotas="1/day", channels={"sms": {"transport": "memory"}})
    with MemoryDispatcher(settings) as made:
        yield made

@pytest.mark.parametrize("_", range(2))
def test_each_has_a_new_one(_, dispatcher, outbox, travel):
    dispatcher.submit(
        channel="sms", recipient="ada", body={}, send_in=datetime.timedelta(days=3)
    )
    travel(days=3)
    assert len(outbox) == 1
"""
OVERRIDES = """
import pytest

@pytest.fixture
def dispatcher():
    return "theirs"

def test_theirs_takes_the_place_of_ours(dispatcher, travel, memory_dispatcher):
    assert dispatcher == "theirs"
    assert travel is memory_dispatcher.travel
"""


def test_the_fixtures_are_light_new_for_each_test_and_easy_to_override(tmp_path: Path) -> None:
    for name, text in (("test_1", LOOKS), ("test_2", USES), ("test_3", OVERRIDES)):
        (tmp_path / f"{name}.py").write_text(text)
    done = pytest_in(tmp_path)
    assert "4 passed" in done.stdout, done.stdout


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
