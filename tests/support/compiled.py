"""What a program does once, done once for all tests of a run and not in each.

SQLAlchemy compiles a statement once for each engine, redis-py reads the file of its own version for
each connection, and each app reads which parts its parts need. A program has few of them; here each
test has its own, and half of what a test of the house costs went into this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from inspect import signature
from typing import Any

from redis import utils as redis_utils
from sqlalchemy import Engine, create_engine

from dispatcher import app
from dispatcher.store import database
from dispatcher.store.engines.base import Prepared

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
    """Let all tests in this process share what is compiled and read."""
    option = {"compiled_cache": _Shared()}
    vars(database)["create_engine"] = partial(create_engine, execution_options=option)
    prepared: dict[Any, dict[str, Any]] = {}
    prepare: Any = Prepared.__init__

    def prepare_once(self: Prepared, engine: Engine, statement: Any, names: Sequence[str]) -> None:
        made = statement._generate_cache_key()
        if made is None:  # SQLAlchemy 2.0 has none for ON CONFLICT
            prepare(self, engine, statement, names)
            return
        key = _by_properties((engine.dialect, made.key, *names))
        if key not in prepared:
            prepare(self, engine, statement, names)
            prepared[key] = vars(self).copy()
        vars(self).update(prepared[key], statement=statement)

    setattr(Prepared, "__init__", prepare_once)  # noqa: B010 - mypy lets nobody assign it
    vars(redis_utils)["get_lib_version"] = cache(redis_utils.get_lib_version)
    vars(app)["signature"] = cache(signature)
