"""``__all__`` is the public surface: each name is there, documented, and has its reference."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import types

import pytest

import dispatcher
from dispatcher import errors
from tests.support.environment import ROOT

PAGES = ROOT / "docs/reference"
NAMED = {
    name
    for page in PAGES.glob("*.md")
    for name in re.findall(r"^::: dispatcher\.([\w.]+)$", page.read_text(), re.MULTILINE)
}
PACKAGES = ["cli", "limiters", "testing", "transports", "web"]


@pytest.mark.parametrize("name", dispatcher.__all__)
def test_a_public_name_is_importable_and_documented(name: str) -> None:
    value = getattr(dispatcher, name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}("), "a docstring of its own, not a generated one"


def test_nothing_public_is_left_out() -> None:
    public = {
        name
        for name in dir(dispatcher)
        if not name.startswith("_") and not isinstance(getattr(dispatcher, name), types.ModuleType)
    }
    assert public == set(dispatcher.__all__)


def test_a_type_checker_reads_the_names_from_where_they_are_imported() -> None:
    [block] = [
        each for each in ast.parse(inspect.getsource(dispatcher)).body if isinstance(each, ast.If)
    ][:1]
    read = {
        (each.module, alias.name)
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert {name for _, name in read} == set(dispatcher.__all__)
    for module, name in read:
        assert getattr(dispatcher, name) is getattr(importlib.import_module(str(module)), name)


def test_every_error_a_caller_may_meet_is_public() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.DispatcherError)
    }
    assert tree - set(dispatcher.__all__) == {"EmbeddedUnavailable"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_what_exists(name: str) -> None:
    package = importlib.import_module(f"dispatcher.{name}")
    for each in package.__all__:
        assert hasattr(package, each)


def test_every_public_name_is_in_the_reference() -> None:
    told = {name.rpartition(".")[2] for name in NAMED}
    assert {*dispatcher.__all__} - told == set()


def test_every_call_of_the_client_is_in_the_reference() -> None:
    calls = {name for name in vars(dispatcher.Dispatcher) if not name.startswith("_")}
    awaited = {f"a{name}" for name in calls} & calls
    told = {name.rpartition(".")[2] for name in NAMED if name.startswith("Dispatcher.")}
    assert told == calls - awaited - {"close"} | {"asubmit"}, "close stands with the class"


def test_every_name_of_the_reference_exists() -> None:
    for name in NAMED:
        assert pkgutil.resolve_name(f"dispatcher.{name}"), name
