"""What starts often starts quickly: it imports nothing that it does not need."""

from __future__ import annotations

import sys

import pytest

from dispatcher.cli import every_command
from dispatcher.cli.app import COMMANDS, help_of
from tests.support.processes import ran

HEAVY = frozenset({"alembic", "asyncio", "celery", "kombu", "pydantic", "redis", "sqlalchemy"})
_RUN = """
import sys
sys.argv = ["dispatcher", *sys.argv[1:]]
from dispatcher.cli import main
try:
    main()
finally:
    print("|", *sorted(sys.modules))
"""


def imported(code: str, *arguments: str) -> set[str]:
    """Return the modules that a fresh process has, by the last line that it prints."""
    told = ran(sys.executable, "-c", code, *arguments, check=True).stdout
    return set(told.rpartition("|")[2].split())


def test_the_package_alone_imports_no_other() -> None:
    found = imported("import sys, dispatcher; print('|', *sys.modules)")
    assert found & {*HEAVY, "rich", "typer"} == set()
    assert {each for each in found if each.startswith("dispatcher.")} == set()


@pytest.mark.parametrize("line", ["--help", "--version", "version", "version --json"])
def test_help_and_version_need_no_server_s_library(line: str) -> None:
    # Typer reads the options of a command with Pydantic.
    assert imported(_RUN, *line.split()) & HEAVY <= {"pydantic"}


def test_the_list_of_commands_is_that_of_their_modules() -> None:
    every = every_command().commands
    assert set(every) == set(COMMANDS)
    for name, (_, module) in COMMANDS.items():
        assert every[name].help.split() == help_of(module)[name].split()
