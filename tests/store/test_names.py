"""The tables under other names than the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect

from dispatcher.message import dump_json, new_id
from dispatcher.store import (
    Addition,
    BulkMessages,
    Claims,
    Database,
    Messages,
    StoreSurvey,
    StoreUpkeep,
    Suppressions,
    migrate,
)
from dispatcher.store.migrate import options
from tests.support import rows
from tests.support.migrations import NEXT, become_next_version
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.every_database

LONGEST = "a" * 20
KINDS = ["sqlite", "postgresql", "mariadb"]
NAMES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {"table_prefix": LONGEST}) for kind in KINDS),
    ("postgresql", {"table_schema": "crm"}),
    ("postgresql", {"table_prefix": "order_", "table_schema": "select"}),
]
under_names = pytest.mark.parametrize(
    ("empty_database_url", "names"), NAMES, indirect=["empty_database_url"]
)


@pytest.fixture
def named(empty_database_url: str, names: dict[str, Any]) -> Iterator[Database]:
    """Give a database with tables under these names."""
    with closing(Database(empty_database_url, **names)) as database:
        migrate(database)
        yield database


def differences(connection: Connection, database: Database) -> list[object]:
    context = MigrationContext.configure(connection, opts=options(database.tables))
    partial = database.backend.has_partial_indexes
    return list(compare_metadata(context, database.tables.described(partial_indexes=partial)))


def names_there(connection: Connection, database: Database) -> set[str]:
    """Return the name of everything that a migration has made."""
    found, schema = inspect(connection), database.tables.schema
    names: set[str] = set()
    for table in found.get_table_names(schema):
        each: list[Any] = [
            *found.get_indexes(table, schema),
            *found.get_check_constraints(table, schema),
            *found.get_unique_constraints(table, schema),
            *found.get_foreign_keys(table, schema),
            found.get_pk_constraint(table, schema),
        ]
        names |= {table, *(one["name"] for one in each if one.get("name"))}
    return names - {"PRIMARY"}


@under_names
def test_the_migrations_build_what_is_described(
    named: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named.run(lambda connection: differences(connection, named)) == []
    assert StoreSurvey(named).missing_indexes() == ()
    made = named.run(lambda connection: names_there(connection, named))
    assert len(made) > 20
    assert all(named.tables.prefix in name and len(name) <= 63 for name in made)
    elsewhere = named.run(lambda connection: inspect(connection).get_table_names())
    assert named.tables.schema is None or elsewhere == []
    become_next_version(tmp_path, monkeypatch)
    assert migrate(named) == migrate(named) == NEXT


@under_names
def test_what_is_stored_is_found_again(named: Database) -> None:
    rows.add(named, idempotency_key="key")
    claim = rows.claimed(named)
    Claims(named, ttl=rows.TTL).put_back([(claim, timedelta(0))], enqueue_in=timedelta(0))
    assert Messages(named).attempts(claim.message.id) == []
    some = [rows.a_message() for _ in range(3)]
    added = BulkMessages(named).add(
        Addition(each, each.send_at, None, dump_json(each.body)) for each in some
    )
    assert added
    assert len(rows.listed(named)) == 5
    Suppressions(named).add("ada", None)
    assert StoreUpkeep(named).give_up([new_id()]).void
    assert StoreUpkeep(named).prune(older_than=timedelta(0), at_most=9) == 1


def test_two_names_in_one_database_are_two_stores(empty_database_url: str) -> None:
    with (
        closing(Database(empty_database_url)) as usual,
        closing(Database(empty_database_url, table_prefix="crm_")) as other,
    ):
        assert migrate(usual) == migrate(other) == migrate(usual)
        message = rows.add(usual, idempotency_key="key")
        twin = rows.add(other, id=message.id, idempotency_key="key", recipient="ada")
        assert rows.listed(usual) == [message]
        assert rows.listed(other) == [twin]
        Messages(usual).cancel(message.id)
        assert Messages(other).get(message.id) == twin


@pytest.mark.parametrize("is_there", [False, True], ids=["made", "found"])
def test_a_schema_is_made_where_it_is_missing(postgres: PostgresServer, is_there: bool) -> None:
    """One that is there asks for no right to make one."""
    name = postgres.create_database()
    postgres.execute("DROP ROLE IF EXISTS modest", name)
    postgres.execute("CREATE ROLE modest LOGIN", name)
    if is_there:
        postgres.execute("CREATE SCHEMA crm AUTHORIZATION modest", name)
    else:
        postgres.execute(f'GRANT CREATE ON DATABASE "{name}" TO modest', name)
    url = postgres.url(name).replace("postgres@", "modest@")
    with closing(Database(url, table_schema="crm")) as database:
        migrate(database)
        message = rows.add(database)
        assert rows.listed(database) == [message]
    postgres.drop_database(name)
    postgres.execute("DROP ROLE modest")
