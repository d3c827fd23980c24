"""The reference has a place for every public name, and for no other."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import dispatcher
from dispatcher import errors

PAGES = Path(__file__).parents[2] / "docs/reference"
NAMED = {
    name
    for page in PAGES.glob("*.md")
    for name in re.findall(r"^::: dispatcher\.([\w.]+)$", page.read_text(), re.MULTILINE)
}


def test_every_public_name_is_there() -> None:
    told = {name.rpartition(".")[2] for name in NAMED}
    assert {*dispatcher.__all__} - told == set()


def test_every_name_that_is_there_exists() -> None:
    for name in NAMED:
        module, _, last = f"dispatcher.{name}".rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    page = (PAGES / "errors.md").read_text()
    tree = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    code = errors.__doc__ or ""
    assert [line.strip() for line in tree.splitlines()] == [
        line.strip() for line in code.splitlines() if line.startswith("    ")
    ]
