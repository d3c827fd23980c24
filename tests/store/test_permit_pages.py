"""Permits are read in pages that cost what they hold, however many old attempts there are."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from dispatcher.store.database import Database
from dispatcher.store.maintenance import StoreMaintenance
from tests.store.plans import add_many, asked_of, plan_of, scans, touched
from tests.support import rows

pytestmark = pytest.mark.every_database

DAY = timedelta(days=1)
BATCH = 5
COLD = 3_000
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def sent_at(database: Database, *instants: datetime, tokens: int = 1) -> set[tuple[UUID, int]]:
    """Store messages that were sent, each with so many attempts; return the attempts."""
    return add_many(database, instants, tokens=tokens)


def read(database: Database, *, batch: int, memory: timedelta = DAY) -> list[tuple[UUID, int]]:
    """Read all permits; return whose they are, in order."""
    pages = list(StoreMaintenance(database).permits(memory=memory, batch=batch))
    assert all(0 < len(page) <= batch for page in pages)
    return [(taken.message_id, taken.token) for page in pages for taken in page]


def each_once(found: list[tuple[UUID, int]], expected: set[tuple[UUID, int]]) -> None:
    assert Counter(found) == Counter(dict.fromkeys(expected, 1))


@pytest.mark.parametrize("batch", [1, 7])
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


@pytest.mark.parametrize(
    ("batch", "apart"), [(1, timedelta(0)), (4, timedelta(microseconds=1)), (11, timedelta(0))]
)
def test_attempts_that_ended_at_nearly_the_same_instant_come_each_once(
    database: Database, batch: int, apart: timedelta
) -> None:
    base = rows.now() - timedelta(hours=1)
    expected = sent_at(database, *(base + n * apart for n in range(10)), tokens=2)
    each_once(read(database, batch=batch), expected)


def test_a_try_under_way_beside_an_earlier_one_of_its_message_comes_too(database: Database) -> None:
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


@on_postgresql
def test_old_attempts_are_not_looked_at(database: Database) -> None:
    now = rows.now()
    add_many(database, (now - 25 * DAY + n * timedelta(minutes=1) for n in range(COLD)))
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
