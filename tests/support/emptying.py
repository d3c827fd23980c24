"""A PostgreSQL database that the next test may have: empty, and as a migration made it."""

from __future__ import annotations

from typing import Any

import psycopg

_SCHEMA = """
SELECT concat_ws(' ',
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_attribute),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_constraint),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_index),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_trigger),
  (SELECT concat_ws('/', count(*), max(xmin::text::bigint)) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace),
  (SELECT string_agg(setconfig::text, ' ') FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())),
  (SELECT string_agg(version_num, ' ') FROM dispatcher_alembic_version))
"""
"""Asks for how many rows the catalogs have, and for the last transaction that wrote one."""
_DROP_OTHERS = """
DO $$ DECLARE each text; BEGIN
  FOR each IN SELECT oid::regclass FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname !~ '^dispatcher_'
  LOOP
    EXECUTE 'DROP TABLE IF EXISTS ' || each || ' CASCADE';
  END LOOP;
END $$
"""
"""Drops the tables that a test made for its program: without them the schema is as it was made."""
# TRUNCATE makes new files for a table, its indexes and all that refers to it: 30 ms, where a DELETE
# of a few rows takes one. It is for what has grown. All rows go, so no foreign key is looked at.
_EMPTY = """
DO $$ DECLARE each regclass; grown text; BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR each IN SELECT pg_class.oid::regclass FROM pg_class
    JOIN pg_namespace own ON own.oid = relnamespace
    WHERE nspname IN ('public', 'dispatcher_days') AND relkind = 'r'
    AND relname <> 'dispatcher_alembic_version' AND pg_relation_size(pg_class.oid) > 0 ORDER BY 1
  LOOP
    IF pg_relation_size(each) > 100000 THEN grown := concat_ws(', ', grown, each);
    ELSE EXECUTE 'DELETE FROM ' || each; END IF;
  END LOOP;
  IF grown IS NOT NULL THEN EXECUTE 'TRUNCATE ' || grown || ' CASCADE'; END IF;
END $$
"""


def schema_of(connection: psycopg.Connection[Any]) -> str:
    try:
        row = connection.execute(_SCHEMA).fetchone()
    except psycopg.errors.UndefinedTable:
        return ""
    return str(row[0]) if row else ""


def end_others(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def emptied(connection: psycopg.Connection[Any], made: str) -> bool:
    """Empty a database whose schema is still as it was made."""
    end_others(connection)
    connection.execute(_DROP_OTHERS)
    is_as_made = schema_of(connection) == made
    if is_as_made:
        connection.execute(_EMPTY)
    return is_as_made
