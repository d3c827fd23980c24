"""Which files of tests run one after another, whatever else runs beside them."""

from __future__ import annotations

from pathlib import Path

from tests.support.sharing import APART, TYPE_COMMANDS, shared_as

ROOT = Path(__file__).parents[2]


def test_every_file_of_the_acceptance_tests_runs_after_others_that_need_what_it_needs() -> None:
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/acceptance/test_*.py")}
    assert set(TYPE_COMMANDS) < files
    shared = {file: shared_as(file) for file in files}
    assert set(shared.values()) == {"commands", "environments"}
    assert {file for file, way in shared.items() if way == "commands"} == set(TYPE_COMMANDS)


def test_every_other_file_is_shared_on_its_own() -> None:
    assert all((ROOT / file).is_file() for file in APART)
    for path in ROOT.glob("tests/*/test_*.py"):
        file = str(path.relative_to(ROOT))
        if "acceptance" not in file:
            assert shared_as(file) == file
