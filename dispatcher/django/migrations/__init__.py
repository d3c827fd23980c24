"""Migrations of Django's: one for each of the dispatcher's own, under the same name."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from dispatcher.django import project
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate


def migrate_store(_apps: object, editor: BaseDatabaseSchemaEditor) -> None:
    """Bring the dispatcher's tables to the schema of this version, as ``dispatcher migrate`` does.

    The dispatcher's own table of versions says which migrations are missing: both may run in any
    order. It runs on a connection of the dispatcher's, outside Django's transaction, and does
    nothing on other databases and on an SQLite in memory. Raises StoreUnavailable, InvalidSettings.
    """
    connection = editor.connection
    alias = project.database_alias()
    if alias is not None and (connection.alias != alias or project.is_in_memory(connection)):
        return
    database = Database.of(project.load_settings())
    try:
        migrate(database)
    finally:
        database.close()
