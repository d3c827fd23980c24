"""The tables under other names than the usual ones, which their database lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from dispatcher import Draft, Message, MessageNotFound, Status
from dispatcher.message import new_id
from dispatcher.store.database import Database
from dispatcher.store.messages import Messages
from dispatcher.store.migrate import migrate
from dispatcher.store.survey import StoreSurvey
from tests.support import rows
from tests.support.examining import OK, examined
from tests.support.house import BODY, House, hour_ago, house_on
from tests.support.migrations import NEXT, become_next_version, differences
from tests.support.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.every_database

LONGEST = "a" * 20
NAMES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {"table_prefix": LONGEST}) for kind in ("sqlite", "postgresql", "mariadb")),
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


def names_there(connection: Connection, database: Database) -> set[str]:
    """Return the name of everything that a migration has made."""
    inspector, schema = inspect(connection), database.tables.schema
    names: set[str] = set()
    for table in inspector.get_table_names(schema):
        made: list[Any] = [
            *inspector.get_indexes(table, schema),
            *inspector.get_check_constraints(table, schema),
            *inspector.get_unique_constraints(table, schema),
            *inspector.get_foreign_keys(table, schema),
            inspector.get_pk_constraint(table, schema),
        ]
        names |= {table, *(one["name"] for one in made if one.get("name"))}
    return names - {"PRIMARY"}


@under_names
def test_the_migrations_build_what_is_described(
    named: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert differences(named) == []
    assert StoreSurvey(named).missing_indexes() == ()
    made = named.run(lambda connection: names_there(connection, named))
    assert len(made) > 20
    assert all(named.tables.prefix in name and len(name) <= 63 for name in made)
    elsewhere = named.run(lambda connection: inspect(connection).get_table_names())
    assert named.tables.schema is None or elsewhere == []
    become_next_version(tmp_path, monkeypatch)
    assert migrate(named) == migrate(named) == NEXT


@pytest.mark.parametrize("empty_database_url", ["sqlite"], indirect=True)
def test_two_names_in_one_database_are_two_stores(empty_database_url: str) -> None:
    with (
        closing(Database(empty_database_url)) as usual,
        closing(Database(empty_database_url, table_prefix="crm_")) as other,
    ):
        assert migrate(usual) == migrate(other) == migrate(usual)
        message = rows.add(usual, idempotency_key="key")
        duplicate = rows.add(other, id=message.id, idempotency_key="key", recipient="ada")
        assert rows.listed(usual) == [message]
        assert rows.listed(other) == [duplicate]
        Messages(usual).cancel([message.id])
        assert Messages(other).get(message.id) == duplicate


def test_a_schema_that_is_there_asks_for_no_right_to_make_one(postgres: PostgresServer) -> None:
    name = postgres.create_database()
    postgres.execute("CREATE ROLE restricted LOGIN", name)
    postgres.execute("CREATE SCHEMA crm AUTHORIZATION restricted", name)
    url = postgres.url(name).replace("postgres@", "restricted@")
    with closing(Database(url, table_schema="crm")) as database:
        migrate(database)
        message = rows.add(database)
        assert rows.listed(database) == [message]
    postgres.drop_database(name)
    postgres.execute("DROP ROLE restricted")


@pytest.mark.parametrize("empty_database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("names", "schema"),
    [
        ({"table_schema": "public"}, "dispatcher_days"),
        ({"table_schema": "select", "table_prefix": "a_"}, "select_a_days"),
        ({"table_schema": "s" * 60}, "s" * 60),
        ({"table_prefix": "pg_"}, "public"),
    ],
    ids=["public", "word", "long", "reserved"],
)
def test_days_lie_in_a_schema_of_their_own(
    empty_database_url: str, names: dict[str, Any], schema: str
) -> None:
    """Where the name of that schema would be invalid, they lie beside the tables."""
    query = text(
        "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class "
        "WHERE relname ~ '_history_[0-9]+$'"
    )
    with closing(Database(empty_database_url, **names)) as database:
        migrate(database)
        schemas = database.run(lambda connection: connection.scalars(query).all())
        assert schemas == [schema]


IN_TWO_HOURS = timedelta(hours=2)


@pytest.fixture
def house(
    redis_server: RedisServer, empty_database_url: str, names: dict[str, Any]
) -> Iterator[House]:
    """Give a house whose clock is an hour slow: what is submitted now is due at once."""
    with house_on(
        redis_server, empty_database_url, clock=hour_ago(), opened=False, **names
    ) as house:
        migrate(house.parts.database)
        house.open()
        yield house


@under_names
def test_a_life_under_other_names(house: House) -> None:
    """Statements that are text, and rows that are stored past SQLAlchemy, name tables, too."""
    door, parts = house.dispatcher, house.parts
    first = house.submit("one", idempotency_key="key")
    assert house.submit("one", idempotency_key="key") == first
    drafts = [
        Draft(channel="memory", recipient=name, body=BODY, send_in=IN_TWO_HOURS) for name in "abc"
    ]
    moved, cancelled, kept = [
        message.id for message in door.submit_many(drafts) if isinstance(message, Message)
    ]
    assert house.deliver(first) == 1
    assert [attempt.outcome for attempt in door.attempts(first.id)] == ["sent"]
    assert door.reschedule(moved, send_in=IN_TWO_HOURS * 2).body == BODY
    assert door.cancel(cancelled).status is Status.CANCELLED
    assert door.suppress("c") == 1
    assert [suppression.recipient for suppression in door.suppressed()] == ["c"]
    assert door.unsuppress("c") == ()
    assert door.get(kept).status is Status.CANCELLED
    assert parts.sweep.enqueue_due() == 0
    parts.reconciler.reconcile()
    door.rebuild_windows()
    assert door.verify_windows().equal
    assert door.count() == len(list(door.select())) == len(house.rows())
    assert door.story(first.id).message.id == first.id
    assert door.status().counts.complete
    assert door.top("recipient").tops
    findings = examined(house)
    for check in ("store.answers", "store.migrations", "store.indexes", "work.channels"):
        assert findings[check].level is OK, findings[check]
    assert parts.void_ids.give_up([new_id()]).void
    assert parts.store_maintenance.prune(older_than=timedelta(0), limit=99) > 0
    with pytest.raises(MessageNotFound):
        door.get(first.id)
