"""The dispatcher's tables live in the database of an application that has an Alembic of its own.

The application has a table ``messages``, too, and revisions that are called like ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, select
from sqlalchemy.orm import Session

from dispatcher.store.migrate import migrate, schema_standing
from tests.support.callers import callers_engine, remind
from tests.support.examining import OK, examined
from tests.support.examples import a_third_of
from tests.support.house import House, house_on
from tests.support.migrations import HEAD
from tests.support.servers import RedisServer

pytestmark = pytest.mark.every_database

PAGE = Path(__file__).parents[2] / "docs/existing-project.md"
THEIRS = MetaData()
letters = Table("messages", THEIRS, Column("number", Integer, primary_key=True))
_ENV = """
from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["metadata"])
with context.begin_transaction():
    context.run_migrations()
"""
_THEIR_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0001", None, None, None


def upgrade():
    op.create_table("messages", sa.Column("number", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table("messages")
"""


def code_of_page(function: str) -> Any:
    """Return what the page tells an application to write into its ``env.py``."""
    [code] = re.findall(rf"```python\n(def {function}.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), names)  # noqa: S102 - our own page
    return names[function]


class Application:
    """A program with tables, migrations and transactions of its own."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.engine = engine
        self._config = Config()
        self._config.set_main_option("script_location", str(folder).replace("%", "%%"))
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(_ENV)
        (folder / "versions" / "0001_first.py").write_text(_THEIR_MIGRATION)

    def migrate(self) -> None:
        with self.engine.begin() as connection:
            self._config.attributes.update(connection=connection, metadata=THEIRS)
            command.upgrade(self._config, "head")

    def revision(self) -> str | None:
        with self.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def differences(self, **options: Any) -> list[Any]:
        """Return what a revision that is generated now would do."""
        with self.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
            return list(compare_metadata(context, THEIRS))

    def letters(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.scalars(select(letters.c.number)))


_IN_A_SCHEMA = ("postgresql", {"table_schema": "crm", "table_prefix": "d_"})
everywhere = pytest.mark.parametrize(
    ("empty_database_url", "names"),
    [("sqlite", {}), ("postgresql", {}), ("mariadb", {}), _IN_A_SCHEMA],
    indirect=["empty_database_url"],
    ids=["sqlite", "postgresql", "mariadb", "schema"],
)

in_a_schema = pytest.mark.parametrize(
    ("empty_database_url", "names"), [_IN_A_SCHEMA], indirect=["empty_database_url"]
)


@pytest.fixture
def house(
    redis_server: RedisServer, empty_database_url: str, names: dict[str, Any]
) -> Iterator[House]:
    """Give a house on a database without tables."""
    with house_on(redis_server, empty_database_url, opened=False, **names) as house:
        yield house


@pytest.fixture
def application(house: House, tmp_path: Path) -> Iterator[Application]:
    with callers_engine(house.database, table=False) as engine:
        yield Application(tmp_path / "theirs", engine)


@everywhere
@pytest.mark.parametrize("first", a_third_of(["theirs", "ours"]))
def test_both_migrate_in_either_order(house: House, application: Application, first: str) -> None:
    if first == "theirs":
        application.migrate()
    assert migrate(house.parts.database) == HEAD
    application.migrate()
    assert migrate(house.parts.database) == HEAD
    assert application.revision() == "0001"
    standing = schema_standing(house.parts.database)
    assert (standing.revision, standing.missing, standing.obstacle) == (HEAD, (), None)
    findings = examined(house)
    assert (findings["store.migrations"].level, findings["store.indexes"].level) == (OK, OK)


@in_a_schema
@pytest.mark.parametrize("function", a_third_of(["include_name", "include_object"]))
def test_a_generated_migration_of_theirs_leaves_our_tables_alone(
    house: House, application: Application, function: str
) -> None:
    migrate(house.parts.database)
    application.migrate()
    options = {"include_schemas": bool(house.tables.schema)}
    unguarded = application.differences(**options)
    dropped = {change[1].name for change in unguarded if change[0] == "remove_table"}
    ours = {table.name for table in house.tables.metadata.sorted_tables}
    assert dropped >= ours | {house.tables.version}, "what the page is for"
    prefix = house.tables.prefix
    of_page = code_of_page(function)

    def guard(*arguments: Any) -> bool:
        """Tell the function of the page the usual names."""
        usual = re.compile(f"^{prefix}")
        told = (usual.sub("dispatcher_", e) if isinstance(e, str) else e for e in arguments)
        return bool(of_page(*told))

    assert application.differences(**{function: guard}, **options) == []


@everywhere
def test_a_session_that_looks_elsewhere_does_not_move_our_tables(
    house: House, application: Application
) -> None:
    """Programs with a schema for each tenant translate names or, on PostgreSQL, set a path."""
    application.migrate()
    migrate(house.parts.database)
    house.open()
    engine = application.engine.execution_options(schema_translate_map={None: "elsewhere"})
    with Session(engine) as session, session.begin():
        if house.tables.schema:
            session.connection().exec_driver_sql("SET LOCAL search_path TO elsewhere")
        message = remind(house, session, idempotency_key="key")
        savepoint = session.begin_nested()
        remind(house, session, "ben")
        savepoint.rollback()
        assert remind(house, session, idempotency_key="key") == message
    assert house.again(message) == message
