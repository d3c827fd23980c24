"""Brings a database to the schema this version needs.

Alembic is imported where it is used: only migrations need it, and it belongs to the extra ``cli``.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, inspect

from dispatcher.errors import StoreUnavailable, needs
from dispatcher.store.database import Database
from dispatcher.store.engines.errors import translated
from dispatcher.store.schema import Tables

if TYPE_CHECKING:
    from alembic.config import Config

_one_at_a_time = Lock()  # Alembic's context is global to the process
_PACKAGE = Path(__file__).parent.parent
_LOCATIONS = (_PACKAGE / "migrations", _PACKAGE.parent / "migrations")


class Obstacle(NamedTuple):
    problem: str
    remedy: str


class SchemaStanding(NamedTuple):
    """The revision of a database, unknown if of another version, and the missing ones in order."""

    revision: str | None
    head: str
    missing: tuple[str, ...]
    is_known: bool
    obstacle: Obstacle | None = None


def migrate(database: Database) -> str:
    """Run the missing migrations, any number side by side; return the revision there then is."""
    with needs("cli", "migrate"):
        from alembic import command  # noqa: PLC0415 - see above
        from alembic.script import ScriptDirectory  # noqa: PLC0415
        from alembic.util import CommandError  # noqa: PLC0415

    config = _config()
    config.attributes["database"] = database
    database.backend.make()
    with _one_at_a_time, translated(database.url), database.engine.connect() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError:
            standing = schema_standing(database)
            if standing.is_known:
                raise
            raise StoreUnavailable(
                f"the database is at revision {standing.revision}, which this version does not "
                "know; nothing was changed: upgrade the dispatcher to the version that made it",
                refused=True,
            ) from None
    return ScriptDirectory.from_config(config).get_current_head() or ""


def schema_standing(database: Database) -> SchemaStanding:
    with needs("cli", "migrate"):
        from alembic.migration import MigrationContext  # noqa: PLC0415 - see above
        from alembic.script import ScriptDirectory  # noqa: PLC0415
        from alembic.script.revision import RevisionError  # noqa: PLC0415

    scripts = ScriptDirectory.from_config(_config())
    head = scripts.get_current_head() or ""
    opts = options(database.tables)
    revision, obstacle = database.run(
        lambda connection: (
            MigrationContext.configure(connection, opts=opts).get_current_revision(),
            obstacle_of(connection, database.tables),
        )
    )
    try:
        later = list(scripts.iterate_revisions("head", revision or "base"))
    except RevisionError:
        return SchemaStanding(revision, head, (), is_known=False)
    missing = tuple(script.revision for script in reversed(later))
    return SchemaStanding(revision, head, missing, is_known=True, obstacle=obstacle)


def options(tables: Tables) -> dict[str, Any]:
    split = (f"{tables.messages.name}_", f"{tables.attempts.name}_")

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        if kind == "schema":
            return name == tables.schema
        if kind != "table":
            return True
        # Partitions are made and dropped by maintenance.
        return str(name).startswith(tables.prefix) and not str(name).startswith(split)

    return {
        "tables": tables,
        "version_table": tables.version,
        "version_table_schema": tables.schema,
        "include_schemas": tables.schema is not None,
        "include_name": is_ours,
    }


def check_obstacle(connection: Connection, tables: Tables) -> None:
    obstacle = obstacle_of(connection, tables)
    if obstacle is not None:
        raise StoreUnavailable(f"{obstacle.problem}; {obstacle.remedy}", refused=True)


def obstacle_of(connection: Connection, tables: Tables) -> Obstacle | None:
    there = inspect(connection)
    if there.has_table(tables.version, tables.schema):
        return None
    names = (table.name for table in tables.metadata.sorted_tables)
    taken = [name for name in names if there.has_table(name, tables.schema)]
    if not taken:
        return None
    return Obstacle(
        f"the tables {', '.join(taken)} exist without {tables.version}, so another program may "
        "have made them",
        "set another table_prefix, or drop these tables if no program needs them",
    )


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    location = next(path for path in _LOCATIONS if (path / "env.py").is_file())
    config.set_main_option("script_location", str(location).replace("%", "%%"))
    return config
