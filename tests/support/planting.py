"""Plants known bugs, so that tests must catch them. A bug replaces attributes, which it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

Seams = Mapping[str, Callable[[Any], Any]]
"""The attributes that a bug replaces, by name; each function makes the wrong value of the real one.

A name begins within ``dispatcher`` (``delivery.sweep.Sweep.rescue``), or with ``tests.``.
"""


@contextmanager
def planted(seams: Seams) -> Iterator[None]:
    """Plant a bug in this process. Raises AttributeError where an attribute is gone."""
    with ExitStack() as stack:
        for name, wrong in seams.items():
            stack.enter_context(patch(_full(name), wrong(real(name))))
        yield


def real(name: str) -> Any:
    return resolve_name(_full(name))


def _full(name: str) -> str:
    return name if name.startswith("tests.") else f"dispatcher.{name}"


def nothing(_: Any) -> Any:
    return lambda *_, **__: None
