"""Runs the migrations, on a connection handed in by ``dispatcher migrate`` or on the settings'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import context
from sqlalchemy import Connection, inspect
from sqlalchemy.schema import CreateSchema

from dispatcher.settings import Settings
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database
from dispatcher.store.migrate import options, refuse_what_is_in_the_way
from dispatcher.store.schema import Tables

_LOCK = 0x64697370  # "disp": two migrations at a time take turns


def run(connection: Connection, tables: Tables) -> None:
    is_mysql = connection.dialect.name in MYSQL
    with _alone_on_mysql(connection) if is_mysql else _in_transaction(connection):
        refuse_what_is_in_the_way(connection, tables)
        if tables.schema and not inspect(connection).has_schema(tables.schema):
            connection.execute(CreateSchema(tables.schema))
        context.configure(
            connection=connection,
            target_metadata=tables.described(connection.dialect.name),
            render_as_batch=connection.dialect.name == "sqlite",
            transactional_ddl=False,
            **options(tables),
        )
        if is_mysql:
            from dispatcher.store.mariadb import finish_what_was_begun  # noqa: PLC0415 - its driver is an extra

            finish_what_was_begun(context.get_context().impl, tables)
        context.run_migrations()


@contextmanager
def _alone_on_mysql(connection: Connection) -> Iterator[None]:
    from dispatcher.store.mariadb import taking_turns  # noqa: PLC0415 - its driver is an extra

    with taking_turns(connection):
        yield


@contextmanager
def _in_transaction(connection: Connection) -> Iterator[None]:
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        # A table is changed by making it anew; dropping the old one would take the attempts along.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    else:
        from dispatcher.store.postgres import be_patient  # noqa: PLC0415 - its driver is an extra

        be_patient(connection)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
    try:
        if not sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    finally:
        if sqlite:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")


handed_in = context.config.attributes.get("connection")
if handed_in is not None:
    run(handed_in, context.config.attributes["tables"])
else:
    database = Database.of(Settings.load())
    with database.engine.connect() as own:
        run(own, database.tables)
    database.close()
