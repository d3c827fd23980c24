"""The line to the database breaks at the worst moments: the answer is what is true."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import make_url

from dispatcher.errors import OutcomeUnknown, StoreUnavailable
from dispatcher.message import Outcome, Status
from dispatcher.store.claims import Claims, Failure, Success
from dispatcher.store.database import Database
from dispatcher.store.engines.mariadb import check_version
from dispatcher.store.engines.postgresql import PostgreSQLConnection
from dispatcher.store.messages import Messages
from dispatcher.store.notifications import Notifications
from tests.support import rows
from tests.support.proxy import FarDatabase

on_postgresql = pytest.mark.parametrize("far", ["postgresql"], indirect=True)


@pytest.fixture
def through(far: FarDatabase) -> Iterator[Database]:
    """Give a database whose every connection goes through the proxy."""
    database = Database(far.through)
    rows.count(database)  # the first connection asks for types, in a transaction of its own
    yield database
    far.proxy.pass_all()
    database.close()


@pytest.fixture
def direct(far: FarDatabase) -> Iterator[Database]:
    """Give the same database without the proxy."""
    database = Database(far.direct)
    yield database
    database.close()


@pytest.mark.parametrize("far", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "lost"), [(b"INSERT INTO dispatcher_messages", 2), (b"COMMIT", 1)]
)
def test_a_message_whose_reply_was_lost_is_stored_once_with_its_key(
    through: Database, direct: Database, far: FarDatabase, statement: bytes, lost: int
) -> None:
    """By the transaction that stores both; tests/submission lose the other replies."""
    message = rows.a_message(idempotency_key="key")
    far.proxy.drop_reply(statement, times=lost)
    stored = Messages(through).add(rows.addition(message, fingerprint="print"))
    assert far.proxy.dropped == lost
    assert stored is message, "it is told from one that was there before"
    assert rows.count(direct) == 1
    assert Messages(direct).get(message.id) == message
    assert Messages(direct).with_keys(["key"]) == {"key": (message, "print")}


def test_a_lost_reply_does_not_hide_that_the_key_belongs_to_another(
    through: Database, direct: Database, far: FarDatabase
) -> None:
    first = rows.add(direct, idempotency_key="key")
    message = rows.a_message(idempotency_key="key")
    far.proxy.drop_reply(message.recipient.encode())
    stored = Messages(through).add(rows.addition(message))
    assert far.proxy.dropped == 1
    assert stored == first
    assert rows.count(direct) == 1


@pytest.mark.timeout(20, method="signal")
@on_postgresql
def test_a_database_that_does_not_answer_is_given_up_in_bounded_time(
    far: FarDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Database(f"{far.through}?connect_timeout=1")
    with monkeypatch.context() as patched:
        patched.setattr(PostgreSQLConnection, "patience", 1.0)
        rows.count(quick)
        message = rows.a_message()
        far.proxy.blackhole()
        with pytest.raises(OutcomeUnknown):
            Messages(quick).add(rows.addition(message))
    quick.close()
    url = make_url(far.direct).difference_update_query(["connect_timeout"])  # the tests' own
    usual = Database(url.render_as_string())
    with usual.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        line = driver.info.get_parameters()
        assert (driver.patience, line["connect_timeout"]) == (11.0, "3")
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "10s"
    usual.close()


@pytest.mark.timeout(20, method="signal")
@pytest.mark.parametrize("far", ["mariadb"], indirect=True)
def test_mariadb_that_does_not_answer_is_given_up_in_bounded_time(far: FarDatabase) -> None:
    quick = Database(f"{far.through}?read_timeout=1&connect_timeout=1")
    rows.count(quick)
    message = rows.a_message()
    far.proxy.blackhole()
    with pytest.raises(OutcomeUnknown):
        Messages(quick).add(rows.addition(message))
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        Messages(quick).get(message.id)
    quick.close()
    usual = Database(far.direct)
    with usual.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert (driver._read_timeout, driver._write_timeout, driver.connect_timeout) == (11, 11, 3)  # type: ignore[union-attr]  # the driver's own
    usual.close()


def test_pooled_connections_that_went_stale_are_not_noticed(
    far: FarDatabase, direct: Database
) -> None:
    for _ in range(3):
        held = [direct.engine.connect() for _ in range(5)]
        for connection in held:
            connection.exec_driver_sql("SELECT 1")
        for connection in held:
            connection.close()
        far.end_connections()
        message = rows.add(direct)
        assert Messages(direct).get(message.id) == message


@pytest.mark.parametrize(
    ("far", "outcome", "statement"),
    [
        ("postgresql", "again", b"COMMIT"),
        ("postgresql", "snoozed", b"done AS"),
        ("postgresql", "sent", b"done AS"),
        *(("mariadb", outcome, b"COMMIT") for outcome in ("again", "snoozed", "sent")),
    ],
    indirect=["far"],
)
def test_a_record_whose_reply_is_lost_counts_once(
    through: Database, direct: Database, far: FarDatabase, outcome: str, statement: bytes
) -> None:
    claim = rows.claimed(direct)
    claims, wait = Claims(through, ttl=rows.TTL), timedelta(minutes=1)
    far.proxy.drop_reply(statement)
    if outcome == "again":
        failure = Failure(claim, Outcome.TEMPORARY, "busy", wait)
        claims.record([], [failure], enqueue_in=rows.SOON)
    elif outcome == "sent":
        claims.record([Success(claim, None)], [], enqueue_in=rows.SOON)
    else:
        claims.put_back([(claim, wait)], enqueue_in=rows.SOON)
    assert far.proxy.dropped == 1
    stored = Messages(direct).get(claim.message.id)
    assert stored.status is (Status.SENT if outcome == "sent" else Status.SCHEDULED)
    assert stored.attempt_count == (0 if outcome == "snoozed" else 1)
    assert len(Messages(direct).attempts(claim.message.id)) == (0 if outcome == "snoozed" else 1)


@pytest.mark.parametrize("far", ["postgresql", "mariadb"], indirect=True)
def test_a_delay_whose_commit_is_not_answered_is_told_and_reported_once(
    through: Database, direct: Database, far: FarDatabase
) -> None:
    message = rows.a_message(send_at=rows.now() - timedelta(minutes=1))
    Messages(direct).add(rows.addition(message, status_url="https://shop.example/hooks"))
    status = Notifications(through, channel="status", max_attempts=7)
    claims = Claims(through, ttl=rows.TTL, report_delays=status.report_delays)
    [claim] = claims.claim([message.id])
    far.proxy.drop_reply(b"COMMIT")
    wait = timedelta(minutes=1)
    delays = claims.put_back([(claim, wait)], enqueue_in=rows.SOON, delayed_by={message.id: "it"})
    assert far.proxy.dropped == 1
    assert delays.told == [message.id]
    assert Messages(direct).get(message.id).delayed_by == "it"
    assert rows.count(direct) == 2, "one message, one report"
    late = claims.put_back([(claim, wait)], enqueue_in=rows.SOON, delayed_by={message.id: "other"})
    assert late.told == []
    assert Messages(direct).get(message.id).delayed_by == "it"


def test_a_batch_whose_commit_is_not_answered_is_perhaps_stored(
    through: Database, direct: Database, far: FarDatabase
) -> None:
    """Stored again it would be refused, and its reservations released."""
    far.proxy.drop_reply(b"COMMIT")
    batch = [rows.addition(rows.a_message()) for _ in range(2)]
    assert Messages(through).add_together(batch) is None
    assert (far.proxy.dropped, rows.count(direct)) == (1, 2)


def test_a_cancel_whose_reply_was_lost_says_what_is_true(
    through: Database, direct: Database, far: FarDatabase
) -> None:
    message = rows.add(direct)
    far.proxy.drop_reply(b"UPDATE dispatcher_messages")
    cancelled = Messages(through).cancel([message.id]).rows
    assert cancelled[message.id].message.status is Status.CANCELLED
    assert far.proxy.dropped == 1


@on_postgresql
def test_a_message_is_stored_past_sqlalchemy(
    direct: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick way must not fail unseen: what it cannot do, the ordinary way does."""
    everything = {
        "idempotency_key": "key", "scopes": {"tenant": "Käse"}, "zone": "Asia/Tokyo",
        "quiet_hours": "21:00-08:00", "expires_at": rows.now() + timedelta(days=1),
    }  # fmt: skip
    for changes in ({}, everything):
        message = rows.a_message(**changes)
        with monkeypatch.context() as patched:
            patched.setattr(type(direct.engine), "connect", None)
            quickly = Messages(direct).add(
                rows.addition(message, fingerprint="print" if changes else None)
            )
        assert quickly == Messages(direct).get(message.id) == message


def test_a_server_of_mysql_is_refused_with_what_to_use_instead() -> None:
    check_version("10.11.19-MariaDB-0+deb12u1")
    with pytest.raises(StoreUnavailable, match=r"MySQL 8\.4\.6") as refused:
        check_version("8.4.6")
    assert refused.value.refused
    assert "MariaDB" in refused.value.remedy
