"""The schema is built once, however many ask for it, and past nothing that is in the way."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect

from dispatcher.errors import StoreUnavailable
from dispatcher.message import new_id
from dispatcher.store.database import Database
from dispatcher.store.engines.postgresql import _MIGRATION_LOCK
from dispatcher.store.messages import Messages
from dispatcher.store.migrate import migrate, schema_standing
from tests.support import rows
from tests.support.migrations import HEAD, NEXT, become_next_version, differences
from tests.support.processes import in_processes
from tests.support.tables import NAMES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_database

IN_THE_WAY = ("dispatcher_messages", "dispatcher_suppressions")
FOREIGN = (
    r"the tables dispatcher_messages, dispatcher_suppressions exist without "
    r"dispatcher_alembic_version, .*; "
    r"set another table_prefix, or drop these tables if no program needs them$"
)


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    with closing(Database(empty_database_url)) as database:
        database.backend.make()
        yield database


def run(database: Database, *statements: str) -> None:
    for statement in statements:
        database.run(lambda connection, it=statement: connection.exec_driver_sql(it))  # type: ignore[misc]  # a default argument


def there(database: Database) -> set[str]:
    """Return the names of the tables, without those of partitions."""
    names = database.run(lambda connection: inspect(connection).get_table_names())
    split = ("dispatcher_messages_", "dispatcher_attempts_")
    return {name for name in names if not name.startswith(split)}


def test_migrating_again_changes_nothing(empty: Database) -> None:
    assert there(empty) == set()
    revision = migrate(empty)
    assert revision == migrate(empty) == HEAD
    assert there(empty) == NAMES


def test_nothing_is_migrated_past_what_is_in_the_way(empty: Database) -> None:
    run(empty, *(f"CREATE TABLE {name} (x INT)" for name in IN_THE_WAY))
    before = there(empty)
    with pytest.raises(StoreUnavailable, match=FOREIGN) as refused:
        migrate(empty)
    assert refused.value.refused
    assert there(empty) == before
    obstacle = schema_standing(empty).obstacle
    assert obstacle is not None
    assert re.search(FOREIGN, f"{obstacle.problem}; {obstacle.remedy}")
    with pytest.raises(StoreUnavailable, match=r"out of date .* run `dispatcher migrate`"):
        Messages(empty).get(new_id())


def test_a_later_version_is_left_as_it_is(empty: Database) -> None:
    migrate(empty)
    run(empty, "UPDATE dispatcher_alembic_version SET version_num = '9999'")
    with pytest.raises(
        StoreUnavailable, match=r"at revision 9999, which this version does not know; nothing was"
    ) as refused:
        migrate(empty)
    assert refused.value.refused
    standing = schema_standing(empty)
    assert (standing.revision, standing.is_known, standing.obstacle) == ("9999", False, None)


def migrated(gate: Any, _number: int, url: str) -> str:
    """Migrate when all processes are there."""
    with closing(Database(url)) as database:
        gate.wait(60)
        return migrate(database)


def test_several_migrations_at_once_take_turns(empty_database_url: str) -> None:
    assert in_processes(2, migrated, empty_database_url) == [HEAD] * 2


@pytest.mark.parametrize("empty_database_url", ["postgresql"], indirect=True)
def test_a_migration_on_postgresql_waits_for_another(
    empty: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with empty.engine.connect() as other, ThreadPoolExecutor(1) as pool:
        other.exec_driver_sql(f"SELECT pg_advisory_lock({_MIGRATION_LOCK})")
        waiting = pool.submit(migrate, empty)
        wait_until(lambda: "another migration of this database runs" in caplog.text)
        other.exec_driver_sql(f"SELECT pg_advisory_unlock({_MIGRATION_LOCK})")
        assert waiting.result(60) == HEAD


def test_the_first_opening_of_a_file_waits_for_another_as_long_as_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.db"
    with (
        sqlite3.connect(path, isolation_level=None) as other,
        closing(Database(f"sqlite:///{path}")) as database,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as patched:
            patched.setattr("dispatcher.store.engines.sqlite._BUSY_SECONDS", 0.2)
            with closing(Database(f"sqlite:///{path}")) as short, pytest.raises(StoreUnavailable):
                pool.submit(migrate, short).result(60)
        answer = pool.submit(migrate, database)
        assert not wait([answer], 0.1).done, "the log of the file cannot be changed now"
        other.execute("COMMIT")
        assert answer.result(60) == HEAD


@pytest.mark.parametrize("empty_database_url", ["mariadb"], indirect=True)
def test_a_migration_that_was_interrupted_is_finished(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB commits each statement of a migration, so a part of it may be there."""
    migrate(empty)
    made = empty.run(checks)
    run(
        empty,
        "DELETE FROM dispatcher_alembic_version",
        "DROP TABLE dispatcher_attempts",
        "DROP INDEX ix_dispatcher_messages_recipient ON dispatcher_messages",
    )
    assert migrate(empty) == HEAD
    assert differences(empty) == []
    assert empty.run(checks) == made
    become_next_version(tmp_path, monkeypatch)
    assert migrate(empty) == NEXT
    made = empty.run(checks)
    back = f"UPDATE dispatcher_alembic_version SET version_num = '{HEAD}'"  # noqa: S608 - ours
    for gone in (
        "DROP INDEX ix_dispatcher_messages_note ON dispatcher_messages",
        "ALTER TABLE dispatcher_messages DROP CONSTRAINT ck_dispatcher_messages_status_known",
        "ALTER TABLE dispatcher_messages DROP COLUMN note",
    ):
        run(empty, back, gone)
        assert migrate(empty) == NEXT
        assert empty.run(checks) == made
        assert "note" in columns(empty)


def checks(connection: Connection) -> dict[str | None, str]:
    """Return what each CHECK of messages says, by its name."""
    constraints = inspect(connection).get_check_constraints("dispatcher_messages")
    return {check["name"]: check["sqltext"] for check in constraints}


def columns(database: Database) -> set[str]:
    described = database.run(
        lambda connection: inspect(connection).get_columns("dispatcher_messages")
    )
    return {column["name"] for column in described}


def test_a_migration_keeps_what_is_stored_and_its_attempts(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = rows.claimed(database, scopes={"tenant": "acme"}, zone="Europe/Berlin")
    become_next_version(tmp_path, monkeypatch)
    assert schema_standing(database).missing == (NEXT,)
    assert migrate(database) == NEXT
    assert "note" in columns(database)
    assert Messages(database).get(claim.message.id) == claim.message
    [attempt] = Messages(database).attempts(claim.message.id)
    assert attempt.outcome is None
