"""The targets install what they need, once."""

from __future__ import annotations

import os
import shutil
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.environment import ROOT
from tests.support.processes import ran


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Give a folder with what the targets depend on, older than what they will make."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (1, 1))
    return tmp_path


def installs(clone: Path, target: str) -> list[str]:
    """Return what the target would install, and after which word about it."""
    lines = ran("make", "--dry-run", target, cwd=clone, check=True).stdout.splitlines()
    found = [place for place, line in enumerate(lines) if "pip install" in line]
    assert all("echo" in line for place in found for line in lines[place - 2 : place - 1])
    return [lines[place].rpartition("'.[")[2].rstrip("]'") for place in found]


def made(clone: Path, *stages: str) -> None:
    (clone / ".venv").mkdir(exist_ok=True)
    for stage in stages:
        (clone / ".venv" / stage).touch()


def test_a_demo_installs_the_demo_alone_and_only_once(clone: Path) -> None:
    assert installs(clone, "demo") == ["embedded,web"]
    made(clone, ".playable")
    assert installs(clone, "demo") == []
    assert installs(clone, "test") == ["dev"]


def test_each_pinned_version_takes_the_oldest_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    too_new = {
        f"{each.name} {each.version}": each.metadata["Requires-Python"]
        for each in distributions()
        if "Requires-Python" in each.metadata
        and f"{each.name.lower().replace('_', '-')}=={each.version}" in pins
        and oldest not in SpecifierSet(each.metadata["Requires-Python"])
    }
    assert not too_new
