"""What differs between databases: one engine for each, and nothing of it elsewhere in the package.

An engine's module imports its driver, which is an extra, so it is imported when a database of its
kind is opened. ``types`` and ``errors`` need no driver.
"""

from __future__ import annotations

from importlib import import_module

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dispatcher.errors import InvalidSettings, MissingExtra
from dispatcher.extras import install_line
from dispatcher.store.engines.base import InsertFailed, Prepared, StoreEngine

_ACCEPTED = "sqlite:///…, postgresql://…, mysql://… or mariadb://…"
_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mariadb": "mysql+pymysql",
    "mariadb+pymysql": "mysql+pymysql",
    "mysql": "mysql+pymysql",
}
_ENGINES = {
    "sqlite": ("sqlite", "SQLiteEngine"),
    "postgresql+psycopg": ("postgresql", "PostgreSQLEngine"),
    "mysql+pymysql": ("mariadb", "MariaDBEngine"),
}
_EXTRAS = {"postgresql+psycopg": "postgres", "mysql+pymysql": "mysql"}

__all__ = ["InsertFailed", "Prepared", "StoreEngine", "engine_of"]


def engine_of(text: str) -> StoreEngine:
    """Return the engine of a database's URL. Raises InvalidSettings, also for a missing driver."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidSettings("database_url", "cannot be read", _ACCEPTED) from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    name = "sqlite" if url.get_backend_name() == "sqlite" else url.drivername
    if name == "sqlite" and url.database in {None, "", ":memory:"}:
        raise InvalidSettings("database_url", "SQLite without a file", _ACCEPTED)
    if name not in _ENGINES:
        raise InvalidSettings("database_url", f"a database {url.drivername}", _ACCEPTED)
    module, kind = _ENGINES[name]
    try:
        engine: StoreEngine = getattr(import_module(f"{__name__}.{module}"), kind)(url)
        engine.check_driver()
    except (ImportError, NoSuchModuleError) as error:
        problem = f"its driver is missing ({error})"
        if name not in _EXTRAS:  # a Python without SQLite
            raise InvalidSettings("database_url", problem, _ACCEPTED) from error
        extra = _EXTRAS[name]
        raise MissingExtra(extra, "database_url", problem, install_line(extra)) from error
    return engine
