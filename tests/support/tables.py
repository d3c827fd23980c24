"""The tables under the names that they have without settings, for statements of tests."""

from __future__ import annotations

from dispatcher.settings import TABLE_PREFIX
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate
from dispatcher.store.schema import tables_named

TABLES = tables_named(TABLE_PREFIX, None)
NAMES = {TABLES.version, *TABLES.metadata.tables}
"""Of all that a migration makes."""
messages = TABLES.messages
attempts = TABLES.attempts
keys = TABLES.keys
IS_MESSAGE = TABLES.is_message


def migrate_at(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()
