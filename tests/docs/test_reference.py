"""The reference has a place for every public name, and for no other."""

from __future__ import annotations

import pkgutil
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


def test_every_call_of_the_client_is_there() -> None:
    calls = {name for name in vars(dispatcher.Dispatcher) if not name.startswith("_")}
    awaited = {f"a{name}" for name in calls} & calls
    told = {name.rpartition(".")[2] for name in NAMED if name.startswith("Dispatcher.")}
    assert told == calls - awaited - {"close"} | {"asubmit"}, "close stands with the class"


def test_every_name_that_is_there_exists() -> None:
    for name in NAMED:
        assert pkgutil.resolve_name(f"dispatcher.{name}"), name


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    page = (PAGES / "errors.md").read_text()
    tree = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    code = errors.__doc__ or ""
    assert [line.strip() for line in tree.splitlines()] == [
        line.strip() for line in code.splitlines() if line.startswith("    ")
    ]
