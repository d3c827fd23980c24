"""No folder grows unnoticed: ``lines.toml`` says how long each folder may be."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.support.environment import ROOT

ALLOWED = tomllib.loads(Path(__file__).with_name("lines.toml").read_text())
SLACK = 20
"""How many lines a folder may shrink before its number in ``lines.toml`` must."""


@pytest.fixture(scope="module")
def folders() -> dict[str, tuple[int, int]]:
    """Give the lines of each folder, and how many it may have."""
    lines: Counter[str] = Counter()
    allowed = Counter(ALLOWED["lines"])
    for top in ("dispatcher", "tests"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in {".py", ".lua"}:
                name, *below = path.relative_to(ROOT / top).parts
                lines[f"{top}/{name if below else '*'}"] += path.read_bytes().count(b"\n")
    for entry in ALLOWED.get("raised", []):
        allowed[entry["folder"]] += entry["lines"]
    return {folder: (lines[folder], allowed[folder]) for folder in lines | allowed}


def test_no_folder_is_longer_than_allowed(folders: dict[str, tuple[int, int]]) -> None:
    longer = {name: have - may for name, (have, may) in folders.items() if have > may}
    assert longer == {}, "remove as many lines, or add an entry to lines.toml with the reason"


def test_what_is_allowed_shrinks_with_a_folder(folders: dict[str, tuple[int, int]]) -> None:
    shorter = {name: have for name, (have, may) in folders.items() if have < may - SLACK}
    assert shorter == {}, "write these lines into lines.toml, less what raises allow"


def test_a_raise_has_a_reason() -> None:
    raised = ALLOWED.get("raised", [])
    assert [entry for entry in raised if entry["lines"] <= 0 or len(entry["reason"]) < 20] == []
