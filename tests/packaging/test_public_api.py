"""A change that breaks users is told, one inside the house is not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import griffe
import pytest

from tests.public_api import broken

BEFORE = """
    from pack.inside import call
    __all__ = ["call", "gone"]
    def gone(): ...
"""


def package(folder: Path, init: str, inside: str) -> griffe.Module:
    (folder / "pack").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text(textwrap.dedent(init))
    (folder / "pack" / "inside.py").write_text(inside)
    made = griffe.load("pack", search_paths=[folder], resolve_aliases=True)
    assert isinstance(made, griffe.Module)
    return made


@pytest.mark.parametrize(
    ("init", "inside", "told"),
    [
        (BEFORE, "def call(a, b=1): ...\ndef helper(): ...", set()),
        (BEFORE, "def call(): ...\ndef helper(a): ...", {"pack.call"}),
        (BEFORE, "def call(a): ...\n", set()),
        (
            'from pack.inside import call\n__all__ = ["call"]',
            "def call(a): ...\ndef helper(a): ...",
            {"pack.gone"},
        ),
    ],
)
def test_a_change_of_an_exported_signature_is_reported(
    tmp_path: Path, init: str, inside: str, told: set[str]
) -> None:
    before = package(tmp_path / "before", BEFORE, "def call(a): ...\ndef helper(a): ...")
    now = package(tmp_path / "now", init, inside)
    assert {name for name, _ in broken(before, now)} == told
