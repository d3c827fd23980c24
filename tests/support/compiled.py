"""What a program does once, done once for all tests of a run and not in each.

SQLAlchemy compiles a statement once for each engine. A program has one; here each test has its own,
and a third of what a test of the house costs went into this.
"""

from __future__ import annotations

from functools import partial
from typing import Any

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
