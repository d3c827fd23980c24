"""The migration of Django's that runs the dispatcher's own ones."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import RunPython

from dispatcher.django import configuration
from dispatcher.store import Database, migrate


class MigrateStore(RunPython):
    """Brings the dispatcher's tables to the schema of this version, as ``dispatcher migrate`` does.

    The dispatcher's own table of versions says which migrations are missing; so Django's migrations
    and that command can be run in any order, and one of Django's may find nothing to do. It runs on
    a connection of the dispatcher's, outside Django's transaction. It does nothing on databases
    other than the one in ``DISPATCHER``, and on an SQLite in memory, which has no other connection.
    Irreversible. Raises StoreUnavailable and InvalidSettings.
    """

    def __init__(self) -> None:
        super().__init__(_migrate, elidable=False)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__qualname__, [], {}


def _migrate(_apps: object, editor: BaseDatabaseSchemaEditor) -> None:
    connection = editor.connection
    alias = configuration.database_alias()
    if alias is not None and (connection.alias != alias or configuration.is_in_memory(connection)):
        return
    database = Database.of(configuration.load())
    try:
        migrate(database)
    finally:
        database.close()
