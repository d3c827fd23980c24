"""Brings a database to the schema this version needs."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from dispatcher.store.database import Database, translated

_one_at_a_time = Lock()  # Alembic's context is global to the process
_PACKAGE = Path(__file__).parent.parent
_LOCATIONS = (_PACKAGE / "migrations", _PACKAGE.parent / "migrations")


def migrate(database: Database) -> str:
    """Run all migrations that are missing; return the revision the database then has.

    Safe to run any number of times and side by side. Raises StoreUnavailable.
    """
    config = Config()
    location = next(path for path in _LOCATIONS if (path / "env.py").is_file())
    config.set_main_option("script_location", str(location).replace("%", "%%"))
    with _one_at_a_time, translated(), database.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return ScriptDirectory.from_config(config).get_current_head() or ""
