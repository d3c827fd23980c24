"""What is installed without an extra is enough to submit, and to run a worker and a beat on Redis.

The development tools bring libraries along that a plain installation does not have.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distributions, packages_distributions, requires
from pkgutil import walk_packages
from subprocess import CompletedProcess

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dispatcher import MissingExtra, cli
from dispatcher.errors import DISTRIBUTION, install_line, needs
from dispatcher.store.migrate import migrate
from tests.support.environment import ROOT
from tests.support.examples import a_third_of
from tests.support.house import House
from tests.support.house_fixtures import on_sqlite
from tests.support.processes import ran

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PLAIN = (
    "kombu.transport.redis",
    "celery.bin.worker",
    "celery.bin.beat",
    "dispatcher.client",
    "dispatcher.celery.tasks",
    "dispatcher.celery.consumer",
    "dispatcher.embedded",
)
COMMANDS = (*PLAIN, *(each.name for each in walk_packages(cli.__path__, "dispatcher.cli.")))
_HIDE = """
import sys
from importlib.abc import MetaPathFinder
hidden = set(sys.argv.pop(1).split(","))
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
_COMMAND = """
import runpy
sys.argv[0] = "dispatcher"
runpy.run_module("dispatcher", run_name="__main__")
"""
_SUBMIT = """
from datetime import timedelta
from dispatcher import Dispatcher
with Dispatcher() as dispatcher:
    accepted = dispatcher.submit(
        channel="memory", recipient="ada", body={"text": "hi"}, send_in=timedelta(days=1)
    )
    print(accepted.id, dispatcher.get(accepted.id).status)
"""


def _installed_with(*extras: str) -> set[str]:
    """Return the distributions that are installed with the dispatcher and these extras."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    found: set[str] = set()
    left = [(Requirement(line), "") for line in lines]
    while left:
        wanted, extra = left.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        for part in {"", *wanted.extras} - ({""} if name in found else set()):
            try:
                left += [(Requirement(line), part) for line in requires(name) or ()]
            except PackageNotFoundError:  # of another platform
                continue
        found.add(name)
    return found | {DISTRIBUTION}


def _run_with(extras: Iterable[str], code: str, *arguments: str) -> CompletedProcess[str]:
    """Run code where nothing else is installed."""
    there = _installed_with(*extras)
    hidden = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(each) for each in owners} & there
    }
    assert {"pytest", "limits"} <= hidden, "what only the tools need would not be hidden"
    words = (sys.executable, "-c", _HIDE + code, ",".join(hidden))
    return ran(*words, *arguments, cwd=ROOT, timeout=60)


def test_a_plain_installation_has_few_dependencies() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert len(names) <= 8
    assert not _installed_with() & {"alembic", "hiredis", "rich", "typer"}


def test_all_has_every_extra_of_users() -> None:
    [everything] = [Requirement(line) for line in EXTRAS["all"]]
    assert everything.extras | {"all", "cli", "docs", "test", "dev"} == set(EXTRAS)
    assert _installed_with("cli") <= _installed_with("all")


def test_each_pinned_version_takes_the_oldest_python_that_is_promised() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    too_new = {
        f"{each.name} {each.version}": each.metadata["Requires-Python"]
        for each in distributions()
        if "Requires-Python" in each.metadata
        and f"{each.name.lower().replace('_', '-')}=={each.version}" in pins
        and oldest not in SpecifierSet(each.metadata["Requires-Python"])
    }
    assert not too_new


@pytest.mark.long
def test_redis_as_the_broker_needs_no_other_extra_for_commands() -> None:
    done = _run_with(["worker"], f"import {', '.join(COMMANDS)}")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_a_framework_needs_its_extra_alone(name: str) -> None:
    module = f"dispatcher.{name}"
    done = _run_with((name,), f"import {module}")
    assert done.returncode == 0, done.stderr
    lacking = _run_with((), f"import {module}").stderr
    assert f"MissingExtra: {module}: needs {name}, which is not installed" in lacking
    assert lacking.endswith(f"accepted: {install_line(name)}\n")


@pytest.mark.parametrize("line", a_third_of(["--help", "submit", "worker"]))
def test_a_command_without_its_extra_names_it(line: str) -> None:
    done = _run_with((), _COMMAND, line)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: dispatcher: needs ")
    assert done.stderr.endswith(f"{install_line('cli')}\n")
    assert done.stderr.count("\n") == 1


@on_sqlite
def test_a_plain_installation_submits_and_has_all_for_a_worker_on_redis(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in house.settings.environment().items():
        monkeypatch.setenv(name, value)
    done = _run_with((), f"{_SUBMIT}\nimport {', '.join(PLAIN)}")
    assert done.returncode == 0, done.stderr
    [reserved] = house.members("ada")
    assert done.stdout.split() == [str(reserved), "scheduled"]


def test_a_migration_without_its_extra_names_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "alembic"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "alembic", None)
    with pytest.raises(MissingExtra, match="needs alembic") as caught:
        migrate(house.database)
    assert (caught.value.extra, caught.value.accepted) == ("cli", install_line("cli"))


def test_a_module_of_ours_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needs("cli", "dispatcher"):
        raise ModuleNotFoundError(name="dispatcher.cli.lost")
