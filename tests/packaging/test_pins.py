"""The pinned versions that the targets install."""

from __future__ import annotations

import tomllib
from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

from tests.support.environment import ROOT


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
