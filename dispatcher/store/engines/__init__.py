"""What differs between databases: one engine for each, and nothing of it elsewhere in the package.

An engine's module imports its driver, which is an extra, so it is imported when a database of its
kind is opened. ``types`` and ``errors`` need no driver.
"""

from __future__ import annotations

from importlib import import_module

from sqlalchemy.exc import NoSuchModuleError

from dispatcher.errors import InvalidSettings, MissingExtra
from dispatcher.extras import install_line
from dispatcher.store.engines.base import InsertFailed, StoreEngine
from dispatcher.store.engines.urls import ACCEPTED, read_url

_ENGINES = {
    "sqlite": ("sqlite", "SQLiteEngine"),
    "postgresql+psycopg": ("postgresql", "PostgreSQLEngine"),
    "mysql+pymysql": ("mariadb", "MariaDBEngine"),
}
_EXTRAS = {"postgresql+psycopg": "postgres", "mysql+pymysql": "mysql"}

__all__ = ["InsertFailed", "StoreEngine", "engine_of"]


def engine_of(text: str) -> StoreEngine:
    """Return the engine of a database's URL. Raises InvalidSettings, also for a missing driver."""
    url = read_url(text)
    name = url.drivername
    if name == "sqlite" and url.database in {None, "", ":memory:"}:
        raise InvalidSettings("database_url", "SQLite without a file", ACCEPTED)
    module, kind = _ENGINES[name]
    try:
        engine: StoreEngine = getattr(import_module(f"{__name__}.{module}"), kind)(url)
        url.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        problem = f"its driver is missing ({error})"
        if name not in _EXTRAS:  # a Python without SQLite
            raise InvalidSettings("database_url", problem, ACCEPTED) from error
        extra = _EXTRAS[name]
        raise MissingExtra(extra, "database_url", problem, install_line(extra)) from error
    return engine
