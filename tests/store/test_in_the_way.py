"""What is in the way of a migration is told with a remedy, and stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import inspect

from dispatcher.errors import StoreUnavailable
from dispatcher.message import new_id
from dispatcher.store import Database, Messages, migrate
from dispatcher.store.migrate import schema_standing
from tests.support.tables import NAMES

pytestmark = pytest.mark.every_database

OURS = "CREATE TABLE dispatcher_messages (x INT)"
VERSIONS = "CREATE TABLE alembic_version (version_num VARCHAR(32))"
OLD = """CREATE TABLE messages (
    id INT, claim_token INT, enqueue_at INT, next_attempt_at INT, reserved INT)"""
FOREIGN = (
    r"it has dispatcher_messages but no dispatcher_alembic_version, .*; "
    r"set another table_prefix, or drop them where nothing needs them$"
)
PRE_RELEASE = (
    r"it holds the tables of a version before the first release \(messages, .*\), which cannot "
    r"be migrated; drop these tables or take another database, then run `dispatcher migrate`$"
)
IN_THE_WAY: dict[str, tuple[Sequence[str], str]] = {
    "a table of another program": ([OURS], FOREIGN),
    "several of them": (
        [OURS, "CREATE TABLE dispatcher_suppressions (x INT)"],
        r"it has dispatcher_messages, dispatcher_suppressions but no",
    ),
    "a version before the first release": (
        [OLD, VERSIONS, "INSERT INTO alembic_version VALUES ('0010')"],
        PRE_RELEASE,
    ),
}


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    database = Database(empty_database_url)
    yield database
    database.close()


def run(database: Database, *statements: str) -> None:
    for each in statements:
        database.run(lambda connection, it=each: connection.exec_driver_sql(it))  # type: ignore[misc]  # a default argument


def there(database: Database) -> set[str]:
    return database.run(lambda connection: set(inspect(connection).get_table_names()))


@pytest.mark.parametrize(("statements", "said"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_nothing_is_migrated_past_what_is_in_the_way(
    empty: Database, statements: Sequence[str], said: str
) -> None:
    run(empty, *statements)
    before = there(empty)
    with pytest.raises(StoreUnavailable, match=said) as refused:
        migrate(empty)
    assert refused.value.refused
    assert there(empty) == before
    obstacle = schema_standing(empty).obstacle
    assert obstacle is not None
    assert re.search(said, f"{obstacle.found}; {obstacle.remedy}")
    with pytest.raises(StoreUnavailable, match=r"schema is behind .* run `dispatcher migrate`"):
        Messages(empty).get(new_id())


def test_an_applications_messages_with_our_old_revisions_are_no_pre_release(
    empty: Database,
) -> None:
    run(
        empty,
        "CREATE TABLE messages (id INT)",
        VERSIONS,
        "INSERT INTO alembic_version VALUES ('0001')",
    )
    migrate(empty)
    assert there(empty) == {*NAMES, "messages", "alembic_version"}


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
