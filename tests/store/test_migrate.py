"""The schema is built once, however many ask for it."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from dispatcher.errors import InvalidSettings, StoreUnavailable
from dispatcher.message import new_id
from dispatcher.store import Database, Messages, migrate
from dispatcher.store.migrate import _config, options, schema_standing
from tests.support import rows
from tests.support.mariadb import MariaDBServer
from tests.support.migrations import NEXT, become_next_version
from tests.support.processes import in_processes
from tests.support.tables import NAMES, TABLES

pytestmark = pytest.mark.every_database

HEAD = "0001"


def tables(database: Database) -> set[str]:
    return database.run(lambda connection: set(inspect(connection).get_table_names()))


def test_migrating_again_changes_nothing(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    try:
        assert tables(database) == set()
        revision = migrate(database)
        assert revision == migrate(database) == HEAD
        assert tables(database) == NAMES
    finally:
        database.close()


def test_who_asks_before_the_migration_is_told_to_migrate(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    try:
        with pytest.raises(StoreUnavailable, match=r"schema is behind .* run `dispatcher migrate`"):
            Messages(database).get(new_id())
    finally:
        database.close()


def migrated(gate: Any, _number: int, url: str) -> str:
    """Migrate in a process of its own, when all of them are there."""
    database = Database(url)
    try:
        gate.wait(60)
        return migrate(database)
    finally:
        database.close()


def test_several_migrations_at_once_take_turns(empty_database_url: str) -> None:
    assert in_processes(4, migrated, empty_database_url) == [HEAD] * 4


def test_who_first_opens_a_file_waits_for_another_who_does(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        database = Database(f"sqlite:///{path}")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(migrate, database)
            assert not wait([answer], 0.3).done, "the log of the file cannot be changed now"
            other.execute("COMMIT")
            assert answer.result(60) == HEAD
        database.close()


def test_who_first_opens_a_file_waits_no_longer_than_for_any_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.store.engines.sqlite._BUSY_SECONDS", 0.2)
    path = tmp_path / "new.db"
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        database = Database(f"sqlite:///{path}")
        with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnavailable):
            pool.submit(migrate, database).result(60)
        other.execute("COMMIT")
        database.close()


on_mariadb = pytest.mark.parametrize("empty_database_url", ["mariadb"], indirect=True)


@on_mariadb
def test_a_migration_that_was_interrupted_is_finished(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB commits each statement of a migration, so a part of it may be there."""
    database = Database(empty_database_url)

    def undo(*statements: str) -> None:
        for statement in statements:
            database.run(lambda connection, it=statement: connection.exec_driver_sql(it))  # type: ignore[misc]  # a default argument

    try:
        migrate(database)
        made = database.run(checks)
        undo(
            "DELETE FROM dispatcher_alembic_version",
            "DROP TABLE dispatcher_attempts",
            "DROP INDEX ix_dispatcher_messages_recipient ON dispatcher_messages",
        )
        assert migrate(database) == HEAD
        assert database.run(differences) == []
        assert database.run(checks) == made
        become_next_version(tmp_path, monkeypatch)
        assert migrate(database) == NEXT
        made = database.run(checks)
        for gone in (
            ["DROP INDEX ix_dispatcher_messages_note ON dispatcher_messages"],
            ["ALTER TABLE dispatcher_messages DROP CONSTRAINT ck_dispatcher_messages_status_known"],
            ["ALTER TABLE dispatcher_messages DROP COLUMN note"],
        ):
            undo("UPDATE dispatcher_alembic_version SET version_num = '0001'", *gone)
            assert migrate(database) == NEXT
            assert database.run(checks) == made
            assert "note" in columns(database)
    finally:
        database.close()


def checks(connection: Connection) -> dict[str | None, str]:
    """Return what each CHECK of messages says, by its name."""
    found = inspect(connection).get_check_constraints("dispatcher_messages")
    return {each["name"]: each["sqltext"] for each in found}


def columns(database: Database) -> set[str]:
    found = database.run(lambda connection: inspect(connection).get_columns("dispatcher_messages"))
    return {each["name"] for each in found}


def differences(connection: Connection) -> list[object]:
    """Return what the schema describes and the database has not, or the other way round."""
    context = MigrationContext.configure(connection, opts=options(TABLES))
    partial = connection.dialect.name != "mysql"
    return list(compare_metadata(context, TABLES.described(partial_indexes=partial)))


def test_the_migrations_build_what_the_schema_describes(database: Database) -> None:
    assert database.run(differences) == []


def test_constraints_have_names_that_can_be_changed_later(database: Database) -> None:
    def names(connection: Connection) -> set[str | None]:
        found = inspect(connection)
        return {
            each["name"]
            for table in TABLES.metadata.tables
            for each in (
                *found.get_check_constraints(table),
                *found.get_unique_constraints(table),
                *found.get_foreign_keys(table),
            )
        }

    found = database.run(names)
    assert None not in found
    assert {
        "ck_dispatcher_messages_status_known",
        "uq_dispatcher_messages_idempotency_key",
    } <= found


def test_sqlite_is_set_up_for_durable_writes_side_by_side(
    database: Database, request: pytest.FixtureRequest
) -> None:
    if database.url.get_backend_name() != "sqlite":
        pytest.skip("about SQLite")
    found = {
        name: database.run(
            lambda connection, name=name: connection.execute(text(f"PRAGMA {name}")).scalar_one()  # type: ignore[misc]  # a default argument
        )
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.mark.parametrize("url", ["", "nonsense", "oracle://u:hunter2@h/d", "postgresql://h:x/d"])
def test_a_url_of_no_known_database_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Database(url)
    assert refused.value.field == "database_url"
    assert "hunter2" not in str(refused.value)


def test_a_database_that_is_not_there_cannot_be_migrated(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    missing = tmp_path_factory.mktemp("gone") / "no" / "such" / "folder" / "x.db"
    database = Database(f"sqlite:///{missing}")
    with pytest.raises(StoreUnavailable):
        migrate(database)
    database.close()


def test_a_migration_keeps_what_is_stored_and_its_attempts(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = rows.claimed(database, scopes={"tenant": "acme"}, zone="Europe/Berlin")
    become_next_version(tmp_path, monkeypatch)
    assert schema_standing(database).missing == (NEXT,)
    assert migrate(database) == NEXT
    assert "note" in columns(database)
    back_to(database, HEAD)
    assert "note" not in columns(database)
    assert Messages(database).get(claim.message.id) == claim.message
    [attempt] = Messages(database).attempts(claim.message.id)
    assert attempt.outcome is None
    with pytest.raises(StoreUnavailable):
        rows.insert_attempt(database, message_id=new_id(), token=1, started_at=rows.now())


def back_to(database: Database, revision: str) -> None:
    config = _config()
    with database.engine.connect() as connection:
        config.attributes.update(connection=connection, database=database)
        command.downgrade(config, revision)


@pytest.mark.parametrize(
    "impossible",
    [
        {"status": "held", "finished_at": rows.now()},
        {"status": "held", "claimed_by": new_id(), "claim_expires_at": rows.now()},
        {"status": "lost"},
        {"on_unknown": "drop"},
        {"on_unknown": None},
        {"expire_after": timedelta(0), "expires_at": rows.now() + timedelta(days=9)},
        {"expire_after": timedelta(1)},
    ],
    ids=" ".join,
)
def test_rows_that_cannot_be_are_refused(database: Database, impossible: dict[str, Any]) -> None:
    message = rows.add(database)
    with pytest.raises(StoreUnavailable) as refused:
        rows.change(database, message.id, **impossible)
    assert refused.value.refused


def test_a_database_whose_tables_a_test_has_changed_is_given_to_no_other(
    mariadb: MariaDBServer,
) -> None:
    def build(url: str) -> None:
        name = url.rpartition("/")[2]
        mariadb.execute(*(f"CREATE TABLE {each} (x INT)" for each in NAMES), database=name)

    server = MariaDBServer(mariadb.address)
    with server:
        name = server.migrated(build)
        server.execute(
            "INSERT INTO dispatcher_messages VALUES (1)",
            "CREATE TABLE other (x INT)",
            database=name,
        )
        assert server.migrated(build) == name
        assert server.execute("SHOW TABLES LIKE 'other'", database=name) == []
        assert server.execute("SELECT * FROM dispatcher_messages", database=name) == []
        for change in (
            "ALTER TABLE dispatcher_messages ADD y INT",
            "DROP TABLE dispatcher_attempts",
        ):
            server.execute(change, database=name)
            assert server.migrated(build) != name
            name = server.migrated(build)
