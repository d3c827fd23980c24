"""What a program does once, done once for all tests of a run and not in each.

SQLAlchemy compiles a statement once for each engine, and each HTTP API draws its document, which is
the same for all. A program has one of each; here each test has its own, and a third of what a test
of the house costs went into this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from sqlalchemy import create_engine

from dispatcher.store import database

_MOST = 5_000
_PLAIN = (str, int, float, type(None))


class _Shared(dict[Any, Any]):
    """A cache that takes dialects for one that are of a class and have the same properties."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_by_properties(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        if len(self) >= _MOST:
            self.clear()
        super().__setitem__(_by_properties(key), compiled)


def _by_properties(key: Any) -> tuple[Any, ...]:
    dialect, *more = key
    known = frozenset((k, v) for k, v in vars(dialect).copy().items() if isinstance(v, _PLAIN))
    return type(dialect), dialect.server_version_info, known, *more


def compile_once() -> None:
    """Let every engine of the store in this process share what is compiled."""
    option = {"compiled_cache": _Shared()}
    vars(database)["create_engine"] = partial(create_engine, execution_options=option)
    api = import_module("dispatcher.web.api")
    vars(api)["document_of"] = _drawn_once(api.document_of)


def _drawn_once(draw: Callable[[FastAPI], dict[str, Any]]) -> Callable[[FastAPI], dict[str, Any]]:
    documents: list[dict[str, Any]] = []

    @wraps(draw)
    def document(app: FastAPI) -> dict[str, Any]:
        if not documents:
            documents.append(draw(app))
        return documents[0]

    return document
