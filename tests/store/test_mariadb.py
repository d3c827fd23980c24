"""What MariaDB does in ways of its own, the store does as on other databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, ExceptionContext, event

from dispatcher.errors import OutcomeUnknown, StoreUnavailable
from dispatcher.message import Status
from dispatcher.store.claims import Claims
from dispatcher.store.database import Database
from dispatcher.store.maintenance import StoreMaintenance, overdue
from dispatcher.store.messages import Messages
from dispatcher.store.notifications import Notifications
from tests.store.plans import add_many
from tests.support import rows

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)

COLD = 1_000
"""How many messages of each kind lie beside what the sweep looks for."""


@pytest.fixture
def impatient(database_url: str) -> Iterator[Database]:
    """Give a database that waits for no lock."""
    asked = "SET SESSION innodb_lock_wait_timeout = 0"
    database = Database(f"{database_url}?init_command={asked}")
    yield database
    database.close()


@contextmanager
def holding(database: Database, *statements: str) -> Iterator[Connection]:
    """Keep a transaction open that has done this."""
    with database.engine.connect() as other:
        other.exec_driver_sql("BEGIN")
        for statement in statements:
            other.exec_driver_sql(statement)
        yield other
        other.exec_driver_sql("ROLLBACK")


def numbers_of_errors(database: Database) -> list[int]:
    """Return a list to which the number of each error of this database is added."""
    seen: list[int] = []

    @event.listens_for(database.engine, "handle_error")
    def note(context: ExceptionContext) -> None:
        assert isinstance(context.original_exception, Exception)
        seen.append(context.original_exception.args[0])

    return seen


def test_a_connection_is_set_up_whatever_the_server_is_used_to(database: Database) -> None:
    own: dict[str, object] = {
        "tx_isolation": "READ-COMMITTED", "max_statement_time": 10.0, "idle_transaction_timeout": 30
    }  # fmt: skip
    names = ("sql_mode", "time_zone", "character_set_client", "autocommit",
             "innodb_lock_wait_timeout", "lock_wait_timeout", *own)  # fmt: skip
    with database.engine.connect() as connection:
        variables = {
            name: connection.exec_driver_sql(f"SELECT @@{name}").scalar_one() for name in names
        }
    assert "STRICT_ALL_TABLES" in variables.pop("sql_mode")
    assert variables == own | {
        "time_zone": "+00:00", "character_set_client": "utf8mb4", "autocommit": 1,
        "innodb_lock_wait_timeout": 3, "lock_wait_timeout": 3,
    }  # fmt: skip


def test_options_of_the_url_win(impatient: Database) -> None:
    with impatient.engine.connect() as connection:
        asked = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
    assert asked == 0


def test_a_url_of_either_name_leads_there_also_with_another_encoding(database_url: str) -> None:
    for url in (
        database_url.replace("mysql://", "mariadb://"),
        database_url.replace("mysql://", "mariadb+pymysql://"),
        f"{database_url}?charset=latin1",
    ):
        database = Database(url)
        message = rows.add(database, body={"text": "👋"})
        assert Messages(database).get(message.id) == message
        database.close()


def test_instants_keep_their_microseconds(database: Database) -> None:
    send_at = rows.now() + timedelta(hours=1, microseconds=1)
    message = rows.add(database, send_at=send_at)
    assert Messages(database).get(message.id).send_at == send_at


def test_a_body_that_no_packet_holds_is_refused_on_a_line_that_stays(database: Database) -> None:
    rows.count(database)
    seen = numbers_of_errors(database)
    with database.engine.connect() as connection:
        most = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
    message = rows.a_message(body={"text": "x" * (most + 1)})
    with pytest.raises(StoreUnavailable) as caught:
        Messages(database).add(rows.addition(message))
    assert not isinstance(caught.value, OutcomeUnknown)
    assert caught.value.refused
    assert seen == [1153]
    assert rows.count(database) == 0


def test_an_interrupted_statement_leaves_no_rest_on_its_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = rows.add(database)

    class OutOfTime(Exception):
        """What a signal raises, such as Celery's at a soft time limit."""

    def stop(_: object) -> None:
        raise OutOfTime

    with monkeypatch.context() as patched:
        patched.setattr("pymysql.connections.MySQLResult._read_rowdata_packet", stop)
        with pytest.raises(OutOfTime):
            rows.count(database)
    assert Messages(database).get(message.id) == message
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool


def test_a_lock_is_waited_for_again(database: Database, impatient: Database) -> None:
    message = rows.add(database)
    seen = numbers_of_errors(impatient)
    with holding(database, "UPDATE dispatcher_messages SET last_error = 'held'") as other:

        @event.listens_for(impatient.engine, "handle_error")
        def let_go(context: ExceptionContext) -> None:
            del context
            other.exec_driver_sql("ROLLBACK")

        cancelled = Messages(impatient).cancel([message.id]).rows
        assert cancelled[message.id].message.status is Status.CANCELLED
    assert seen == [1205]


def test_a_lock_that_is_never_given_is_an_error_after_three_waits(
    database: Database, impatient: Database
) -> None:
    first = rows.add(database, idempotency_key="key")
    seen = numbers_of_errors(impatient)
    message = rows.a_message(idempotency_key="key")
    with (
        holding(database, "UPDATE dispatcher_idempotency_keys SET idempotency_key = 'other'"),
        pytest.raises(StoreUnavailable, match="answered 1205"),
    ):
        Messages(impatient).add(rows.addition(message))
    assert seen == [1205] * 3
    with (
        pytest.raises(StoreUnavailable, match="answered 1205"),
        holding(database, "SELECT * FROM dispatcher_messages FOR UPDATE"),
    ):
        Messages(impatient).cancel([first.id])
    assert seen == [1205] * 6
    assert Messages(database).get(first.id).status is Status.SCHEDULED


def test_an_insert_that_a_deadlock_undid_is_done_again(database: Database) -> None:
    database.run(
        lambda connection: connection.exec_driver_sql(
            "CREATE TRIGGER deadlock BEFORE INSERT ON dispatcher_messages FOR EACH ROW "
            "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"
        )
    )
    seen = numbers_of_errors(database)
    other = Database(database.url.render_as_string())

    @event.listens_for(database.engine, "handle_error")
    def calm(context: ExceptionContext) -> None:
        del context
        other.run(lambda connection: connection.exec_driver_sql("DROP TRIGGER deadlock"))

    message = rows.add(database)
    assert seen == [1213]
    assert Messages(database).get(message.id) == message
    other.close()


def test_a_batch_is_one_statement_for_many_rows(database: Database) -> None:
    additions = [rows.addition(rows.a_message()) for _ in range(300)]
    before = _status(database, "Com_insert")
    assert Messages(database).add_together(additions)
    assert _status(database, "Com_insert") - before == 1
    assert rows.count(database) == 300


def test_claims_wait_for_nobody_and_leave_what_others_hold(database: Database) -> None:
    held, free = rows.add_due(database), rows.add_due(database)
    seen = numbers_of_errors(database)
    by_id = f"SELECT id FROM dispatcher_messages WHERE id = x'{held.id.hex}' FOR UPDATE"  # noqa: S608 - our id
    with holding(database, by_id):
        [claim] = Claims(database, ttl=rows.TTL).claim([held.id, free.id])
        due = rows.take_due(StoreMaintenance(database), limit=9, grace=rows.SOON)
    assert claim.message.id == free.id
    assert due == []
    assert seen == []
    assert Messages(database).get(held.id).status is Status.SCHEDULED


def _status(database: Database, prefix: str) -> int:
    query = f"SHOW SESSION STATUS LIKE '{prefix}%%'"
    with database.engine.connect() as connection:
        return sum(int(row[1]) for row in connection.exec_driver_sql(query))


@pytest.fixture
def cold(database: Database) -> Database:
    """Give a database with many messages of each status that are not what the sweep looks for."""

    now, minutes = rows.now(), [n * timedelta(minutes=1) for n in range(1, COLD + 1)]
    add_many(database, (now + minute for minute in minutes), status="scheduled", tokens=0)
    told: dict[str, Any] = {"status_url": "https://shop.example", "notified_status": "sent"}
    add_many(database, (now - minute for minute in minutes), **told)
    add_many(database, (now - minute for minute in minutes), status="cancelled", tokens=0,
             reserved=False)  # fmt: skip
    analyze = "ANALYZE TABLE dispatcher_messages, dispatcher_attempts"
    database.run(lambda connection: connection.exec_driver_sql(analyze).all())
    return database


def add_few(database: Database) -> None:
    """Store three messages of each kind that the sweep looks for."""
    store = Messages(database)
    url = {"status_url": "https://shop.example", "notified_status": "scheduled"}
    for _ in range(3):
        rows.add_due(database)
        rows.change(database, rows.ended(database, timedelta(0)).id, **url)
        rows.age(database, rows.claimed(database).message.id)
        store.cancel([rows.add(database).id])
        old, overdue_ = rows.add(database).id, rows.add_due(database).id
        store.cancel([old])
        StoreMaintenance(database).mark_released([old])
        rows.age(database, old, rows.AGES)
        rows.change(database, overdue_, next_attempt_at=rows.now() - timedelta(hours=1))
    held = (
        "UPDATE dispatcher_messages SET status = 'held', finished_at = NULL WHERE status = 'sent'"
    )
    database.run(lambda connection: connection.exec_driver_sql(held))


def expired(database: Database) -> int:
    to_expire = overdue(database.tables, ["sms"], timedelta(minutes=5))
    return len(StoreMaintenance(database, to_expire=to_expire).expire_overdue(limit=9))


LOOKS: list[Callable[[Database], int]] = [
    lambda database: len(rows.listed(database, overdue=True)),
    lambda database: len(rows.listed(database, limit=9, status=Status.HELD)),
    lambda database: len(StoreMaintenance(database).unreleased(limit=9)),
    lambda database: StoreMaintenance(database).prune(older_than=timedelta(days=30), limit=9),
    expired,
    lambda database: len(rows.take_due(StoreMaintenance(database), limit=9, grace=rows.SOON)),
    lambda database: len(StoreMaintenance(database).rescue(limit=9)),
    lambda database: len(Notifications(database, channel="status", max_attempts=1).tell(limit=9)),
]


def test_looks_of_the_sweep_read_their_index_alone(cold: Database) -> None:
    add_few(cold)
    for number, find in enumerate(LOOKS):
        before = _status(cold, "Handler_read")
        assert find(cold) >= 3, number
        assert _status(cold, "Handler_read") - before < COLD / 10, number


def test_a_page_of_permits_begins_where_the_one_before_it_ended(cold: Database) -> None:
    maintenance = StoreMaintenance(cold)
    before = _status(cold, "Handler_read")
    pages = list(maintenance.permits(memory=timedelta(days=30), batch=50))
    assert sum(map(len, pages)) == COLD
    assert _status(cold, "Handler_read") - before < 4 * COLD
