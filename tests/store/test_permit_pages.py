"""Permits are read in pages that cost what they hold, however many old attempts there are."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, insert, text

from dispatcher.message import new_id
from dispatcher.store import Database, StoreMaintenance
from tests.store.plans import asked_of, plan_of, scans, touched
from tests.support import rows
from tests.support.tables import attempts, messages

pytestmark = pytest.mark.every_database

DAY = timedelta(days=1)
BATCH = 5
COLD = 20_000
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def sent_at(database: Database, *instants: datetime, tokens: int = 1) -> set[tuple[UUID, int]]:
    """Store messages that were sent, each with so many attempts; return the attempts."""
    values = []
    for instant in instants:
        message = rows.a_message(send_at=instant)
        values.append(
            {name: getattr(message, name) for name in _shared()}
            | {"id": new_id(), "status": "sent", "finished_at": instant, "attempt_count": tokens}
            | {"enqueue_at": instant, "claim_token": tokens, "reserved": True}
        )
    made = [
        {
            "message_id": each["id"],
            "token": token,
            "started_at": each["finished_at"],
            "finished_at": each["finished_at"],
            "outcome": "sent" if token == tokens else "temporary",
        }
        for each in values
        for token in range(1, tokens + 1)
    ]

    def work(connection: Connection) -> None:
        connection.execute(insert(messages), values)
        connection.execute(insert(attempts), made)

    database.run(work)
    return {(each["message_id"], each["token"]) for each in made}


def _shared() -> list[str]:
    message = rows.a_message()
    return [name for name in messages.c.keys() if hasattr(message, name)]  # noqa: SIM118 - columns


def read(database: Database, *, batch: int, memory: timedelta = DAY) -> list[tuple[UUID, int]]:
    """Read all permits; return whose they are, in order."""
    pages = list(StoreMaintenance(database).permits(memory=memory, batch=batch))
    assert all(0 < len(page) <= batch for page in pages)
    return [(taken.message_id, taken.token) for page in pages for taken in page]


def each_once(found: list[tuple[UUID, int]], expected: set[tuple[UUID, int]]) -> None:
    assert Counter(found) == Counter(dict.fromkeys(expected, 1))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_finished_and_unfinished_attempts_come_each_once(database: Database, batch: int) -> None:
    now = rows.now()
    expected = sent_at(database, *(now - n * timedelta(hours=1) for n in range(6)))
    expected |= sent_at(database, *[now - timedelta(hours=2)] * 3, tokens=2)
    for _ in range(4):
        claim = rows.claimed(database)
        expected.add((claim.message.id, claim.token))
    rows.add(database)
    sent_at(database, now - 2 * DAY, now - 3 * DAY)
    each_once(read(database, batch=batch), expected)


@pytest.mark.parametrize("apart", [timedelta(0), timedelta(microseconds=1)])
@pytest.mark.parametrize("batch", [1, 2, 4, 5, 11])
def test_attempts_that_ended_at_nearly_the_same_instant_come_each_once(
    database: Database, batch: int, apart: timedelta
) -> None:
    base = rows.now() - timedelta(hours=1)
    expected = sent_at(database, *(base + n * apart for n in range(10)), tokens=2)
    each_once(read(database, batch=batch), expected)


def test_a_try_under_way_beside_an_earlier_one_of_its_message_comes_too(
    database: Database,
) -> None:
    claims = [rows.claimed(database) for _ in range(5)]
    now = rows.now()
    for claim in claims:
        rows.insert_attempt(
            database, message_id=claim.message.id, token=claim.token + 100,
            started_at=now, finished_at=now, outcome="unknown",
        )  # fmt: skip
    expected = {
        (claim.message.id, token) for claim in claims for token in (claim.token, claim.token + 100)
    }
    each_once(read(database, batch=2), expected)


def test_a_claim_that_ran_out_and_was_not_rescued_yet_comes_with_its_age(
    database: Database,
) -> None:
    claim = rows.claimed(database)
    rows.age(database, claim.message.id)
    [[taken]] = StoreMaintenance(database).permits(memory=DAY, batch=9)
    assert taken.message_id == claim.message.id
    assert timedelta(minutes=9) < taken.age < timedelta(minutes=11)


def add_cold(database: Database) -> None:
    """Store many attempts that ended weeks ago, in one statement."""

    def work(connection: Connection) -> None:
        connection.execute(
            text("""
            INSERT INTO dispatcher_messages (id, channel, recipient, scope, body, send_at,
                next_attempt_at, enqueue_at, status, attempt_count, max_attempts, claim_token,
                reserved, created_at, finished_at)
            SELECT gen_random_uuid(), 'sms', 'r' || n, 'r' || n, '{}', at, at, at, 'sent', 1, 3, 1,
                true, at, at
            FROM (
                SELECT n, now() - interval '25 days' + n * interval '1 minute' AS at
                FROM generate_series(1, :many) AS n
            ) AS instants
            """),
            {"many": COLD},
        )
        connection.execute(
            text("""
            INSERT INTO dispatcher_attempts (message_id, token, started_at, finished_at, outcome)
            SELECT id, 1, finished_at, finished_at, 'sent' FROM dispatcher_messages
                WHERE status = 'sent'
            """)
        )

    database.run(work)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # earlier tests left dead rows


@on_postgresql
def test_old_attempts_are_not_looked_at(database: Database) -> None:
    add_cold(database)
    now = rows.now()
    expected = sent_at(database, *[now - timedelta(hours=1)] * 12)
    expected |= sent_at(database, *(now - n * timedelta(seconds=1) for n in range(8)))
    for _ in range(3):
        claim = rows.claimed(database)
        expected.add((claim.message.id, claim.token))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # earlier tests left dead rows
    with asked_of(database.engine) as asked:
        found = read(database, batch=BATCH)
    each_once(found, expected)
    assert asked
    assert len(asked) <= len(expected) // BATCH + 4, "pages, not rows"
    with database.engine.connect() as connection:
        for statement, parameters in asked:
            plan = plan_of(connection, statement, parameters, "ANALYZE")
            assert "dispatcher_attempts" not in scans(plan), statement
            assert touched(plan) < 50 * BATCH, statement


def test_a_day_without_a_partition_is_read_too(database: Database) -> None:
    """Else a rebuild would forget what ended in it, and quotas and limits would be exceeded."""
    expected = sent_at(database, *[rows.now() - timedelta(hours=25)] * 5)
    each_once(read(database, batch=3, memory=3 * DAY), expected)
    pages = StoreMaintenance(database).reservations(memory=3 * DAY, batch=3)
    assert sorted(each.message_id for page in pages for each in page) == sorted(
        message_id for message_id, _ in expected
    )
