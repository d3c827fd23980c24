"""``__all__`` is the public surface: every name is there, documented, and nothing else is."""

from __future__ import annotations

import ast
import importlib
import inspect
import types

import pytest

import dispatcher
from dispatcher import errors

PACKAGES = ["cli", "limiters", "reservation", "store", "submission", "transports"]


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
    assert read == {
        (f"dispatcher.{module}", name) for name, module in dispatcher._MODULE_OF.items()
    }


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
