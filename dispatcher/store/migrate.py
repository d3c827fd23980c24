"""Brings a database to the schema this version needs.

Alembic is imported where it is used: it brings a hundred modules along, and those who submit, look
or tick never need them.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.store.database import Database, translated

if TYPE_CHECKING:
    from alembic.config import Config

_one_at_a_time = Lock()  # Alembic's context is global to the process
_PACKAGE = Path(__file__).parent.parent
_LOCATIONS = (_PACKAGE / "migrations", _PACKAGE.parent / "migrations")


class SchemaStanding(NamedTuple):
    """How a database stands to the migrations of this version.

    ``revision`` is the one it has, None without one; ``missing`` are those it lacks, the first one
    first. ``is_known`` is false where the revision belongs to another version.
    """

    revision: str | None
    head: str
    missing: tuple[str, ...]
    is_known: bool


def migrate(database: Database) -> str:
    """Run all migrations that are missing; return the revision the database then has.

    Safe to run any number of times and side by side. Raises StoreUnavailable.
    """
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = _config()
    with _one_at_a_time, translated(), database.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return ScriptDirectory.from_config(config).get_current_head() or ""


def schema_standing(database: Database) -> SchemaStanding:
    """Tell which migrations a database lacks. Changes nothing. Raises StoreUnavailable."""
    from alembic.migration import MigrationContext  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from alembic.script.revision import RevisionError  # noqa: PLC0415

    scripts = ScriptDirectory.from_config(_config())
    head = scripts.get_current_head() or ""
    revision = database.run(
        lambda connection: MigrationContext.configure(connection).get_current_revision()
    )
    try:
        later = list(scripts.iterate_revisions("head", revision or "base"))
    except RevisionError:
        return SchemaStanding(revision, head, (), is_known=False)
    missing = tuple(each.revision for each in reversed(later))
    return SchemaStanding(revision, head, missing, is_known=True)


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    location = next(path for path in _LOCATIONS if (path / "env.py").is_file())
    config.set_main_option("script_location", str(location).replace("%", "%%"))
    return config
