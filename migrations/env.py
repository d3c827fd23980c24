"""Runs the migrations, on a connection handed in by ``dispatcher migrate`` or on the settings'."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from dispatcher.settings import Settings
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import Database
from dispatcher.store.schema import described

_LOCK = 0x64697370  # "disp": two migrations at a time take turns


def run(connection: Connection) -> None:
    sqlite = connection.dialect.name == "sqlite"
    if connection.dialect.name in MYSQL:
        from dispatcher.store.mariadb import finish_what_was_begun, taking_turns  # noqa: PLC0415 - its driver is an extra

        with taking_turns(connection):
            context.configure(
                connection=connection,
                target_metadata=described(connection.dialect.name),
                transactional_ddl=False,
            )
            finish_what_was_begun(context.get_context().impl)
            context.run_migrations()
        return
    if not sqlite:
        from dispatcher.store.postgres import be_patient  # noqa: PLC0415 - its driver is an extra

        be_patient(connection)
    else:
        # A table is changed by making it anew; dropping the old one would take the attempts along.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
    try:
        if not sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        context.configure(
            connection=connection,
            target_metadata=described(connection.dialect.name),
            render_as_batch=sqlite,
            transactional_ddl=False,
        )
        context.run_migrations()
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    finally:
        if sqlite:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")


handed_in = context.config.attributes.get("connection")
if handed_in is not None:
    run(handed_in)
else:
    database = Database(Settings.load().database_url)
    with database.engine.connect() as own:
        run(own)
    database.close()
