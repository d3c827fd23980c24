"""A PostgreSQL database that the next test may have: empty, and as a migration made it."""

from __future__ import annotations

from typing import Any

import psycopg

_SCHEMA = """
WITH ours AS (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
SELECT string_agg(line, chr(10) ORDER BY line) FROM (
  SELECT concat_ws(' ', attrelid::regclass, attname, atttypid, atttypmod, attnotnull) AS line
    FROM pg_attribute WHERE attrelid IN (SELECT oid FROM ours) AND attnum > 0
  UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
  UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
  UNION ALL SELECT tgname FROM pg_trigger
    WHERE tgrelid IN (SELECT oid FROM ours) AND NOT tgisinternal
  UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT setconfig::text FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  UNION ALL SELECT version_num FROM dispatcher_alembic_version
) AS lines
"""
"""Asks for what tells whether a test has changed the tables, or what surrounds them."""
_EMPTY = """
DO $$ DECLARE each text; holds boolean; BEGIN
  FOR each IN SELECT quote_ident(tablename) FROM pg_tables
    WHERE schemaname = 'public' AND tablename <> 'dispatcher_alembic_version' ORDER BY 1
  LOOP
    EXECUTE 'SELECT EXISTS (SELECT FROM ' || each || ')' INTO holds;
    IF holds THEN EXECUTE 'TRUNCATE ' || each || ' CASCADE'; END IF;
  END LOOP;
END $$
"""


def schema_of(connection: psycopg.Connection[Any]) -> str:
    """Tell everything that a migration makes."""
    try:
        row = connection.execute(_SCHEMA).fetchone()
    except psycopg.errors.UndefinedTable:
        return ""
    return str(row[0]) if row else ""


def end_others(connection: psycopg.Connection[Any]) -> None:
    """End every other connection to the same database."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def emptied(connection: psycopg.Connection[Any], made: str) -> bool:
    """Empty a database whose schema is still as it was made."""
    end_others(connection)
    is_as_made = schema_of(connection) == made
    if is_as_made:
        connection.execute(_EMPTY)
    return is_as_made
