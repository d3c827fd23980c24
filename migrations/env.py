"""Runs the migrations, on a connection handed in by ``dispatcher migrate`` or on the settings'."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, inspect
from sqlalchemy.schema import CreateSchema

from dispatcher.settings import Settings
from dispatcher.store.database import Database
from dispatcher.store.migrate import check_obstacle, options


def run(connection: Connection, database: Database) -> None:
    tables, backend = database.tables, database.backend
    with backend.migrating(connection):
        check_obstacle(connection, tables)
        if tables.schema and not inspect(connection).has_schema(tables.schema):
            connection.execute(CreateSchema(tables.schema))
        context.configure(
            connection=connection,
            target_metadata=tables.metadata,
            render_as_batch=True,
            transactional_ddl=False,
            engine=backend,
            **options(tables),
        )
        backend.skip_applied_statements(context.get_context().impl, tables)
        context.run_migrations()


handed_in = context.config.attributes.get("connection")
if handed_in is not None:
    run(handed_in, context.config.attributes["database"])
else:
    database = Database.of(Settings.load())
    database.backend.make()
    with database.engine.connect() as own:
        run(own, database)
    database.close()
