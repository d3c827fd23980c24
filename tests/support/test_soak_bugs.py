"""The bugs that the soak must catch can still be put into the package as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.soak.faults import BY_NAME
from tests.soak.seeded import BUGS, Bug, Change
from tests.support.environment import ROOT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_finds_what_it_replaces(bug: Bug, tmp_path: Path) -> None:
    for change in bug.changes:
        copy = tmp_path / "dispatcher" / change.file
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "dispatcher" / change.file, copy)
        before = copy.read_text()
        change.apply(tmp_path)
        assert copy.read_text() != before


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_has_something_that_is_to_catch_it(bug: Bug) -> None:
    assert bool(bug.faults) != bool(bug.test)
    assert set(bug.faults) <= BY_NAME.keys()
    assert not bug.test or (ROOT / bug.test.partition("::")[0]).is_file()


def test_what_is_not_found_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "dispatcher"
    folder.mkdir()
    (folder / "clock.py").write_text("twice twice")
    for old, many in (("never", 0), ("twice", 2)):
        with pytest.raises(ValueError, match=f"has {many} times"):
            Change(file="clock.py", old=old, new="").apply(tmp_path)
