"""The store's half of the sweep: any number side by side, in bounded batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, select, text

from dispatcher.message import Message, Outcome, Status
from dispatcher.store.claims import UNKNOWN, Claims, Failure
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.maintenance import ReservationRow, StoreMaintenance
from dispatcher.store.messages import Messages
from tests.store.plans import add_many, asked_of, plan_of, scans, touched
from tests.support import rows
from tests.support.tables import messages

pytestmark = pytest.mark.every_database

GRACE = timedelta(seconds=5)
BATCH = 5
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def test_due_messages_come_soonest_first_up_to_the_limit(database: Database) -> None:
    times = [rows.now() - timedelta(seconds=seconds) for seconds in (10, 30, 20, 40)]
    ids = [rows.add(database, send_at=time).id for time in times]
    rows.add(database)
    rows.claimed(database)
    rows.ended(database, timedelta(0))
    Messages(database).cancel([rows.add_due(database).id])
    taken = rows.take_due(StoreMaintenance(database), limit=3, grace=GRACE)
    assert [due.message_id for due in taken] == [ids[3], ids[1], ids[2]]
    assert taken[0].channel == "sms"
    assert taken[0].next_attempt_at == times[3]
    left = rows.take_due(StoreMaintenance(database), limit=3, grace=GRACE)
    assert [due.message_id for due in left] == [ids[0]]


def test_the_later_a_message_is_the_longer_until_it_is_enqueued_again(database: Database) -> None:
    for late, graces in ((0, 1), (1, 1), (3, 1), (4, 8), (7, 8), (8, 16), (1_000, 16)):
        message = rows.add(database, send_at=rows.now() - late * GRACE)
        before = rows.now()
        assert len(rows.take_due(StoreMaintenance(database), limit=9, grace=GRACE)) == 1
        after = rows.row(database, message.id).enqueue_at - (before + graces * GRACE)
        spent = rows.now() - before
        assert timedelta(0) <= after <= spent + timedelta(milliseconds=9), late


def test_prune_deletes_what_ended_long_ago_in_bounded_batches(database: Database) -> None:
    old = [rows.ended(database, 33 * DAY).id for _ in range(5)]
    recent, waiting = rows.ended(database, 29 * DAY).id, rows.add(database)
    rows.age(database, waiting.id, 400 * DAY)
    maintenance = StoreMaintenance(database)
    assert [maintenance.prune(older_than=30 * DAY, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert rows.count(database) == 2
    assert {message.id for message in rows.listed(database)} == {recent, waiting.id}
    assert all(Messages(database).attempts(message_id) == [] for message_id in old)


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_prune_waits_for_no_message_that_another_transaction_holds(database: Database) -> None:
    old = [rows.ended(database, 33 * DAY + n * MINUTE).id for n in range(12)]
    held = old[1::2]

    def work(connection: Connection) -> int:
        for message_id in held:
            is_it = messages.c.id == message_id
            connection.execute(select(messages.c.id).where(is_it).with_for_update())
        return StoreMaintenance(database).prune(older_than=30 * DAY, limit=100)

    assert database.transact(work) == 6
    assert {message.id for message in rows.listed(database)} == set(held)
    assert StoreMaintenance(database).prune(older_than=30 * DAY, limit=100) == 6


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_locked_message_is_not_barred(database: Database) -> None:
    locked, free = rows.add(database).id, rows.add(database).id

    def work(connection: Connection) -> set[UUID]:
        mine = messages.c.id == locked
        connection.execute(select(messages.c.id).where(mine).with_for_update())
        return StoreMaintenance(database).bar_moves([locked, free])

    assert database.transact(work) == {free}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_however_many_ids_are_one_parameter(database: Database) -> None:
    message = rows.add(database)
    ids = [message.id, *(uuid4() for _ in range(999))]
    with asked_of(database.engine) as asked:
        assert set(StoreMaintenance(database).reserved_times(ids)) == {message.id}
        StoreMaintenance(database).mark_released(ids)
    assert len(asked) == 2
    assert max(len(values) for _, values in asked) < 10


def test_places_come_in_pages_and_each_once(database: Database) -> None:
    kept = [rows.add(database) for _ in range(6)]
    kept.append(rows.add(database, channel="email", scopes={"tenant": "acme"}))
    Messages(database).cancel([rows.add(database).id])
    long_past = rows.add(database)
    rows.age(database, long_past.id, 10 * DAY)
    pages = list(StoreMaintenance(database).reservations(memory=2 * DAY, batch=3))
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [place for page in pages for place in page] == [
        ReservationRow(
            message.id, message.scope, message.send_at, message.channel, message.scopes or None, ""
        )
        for message in kept
    ]
    assert list(StoreMaintenance(database).reservations(memory=timedelta(0), batch=7)) == [
        pages[0] + pages[1] + pages[2]
    ]


def test_places_made_between_two_instants_are_told_by_their_ids(database: Database) -> None:
    message = rows.add(database)
    made = rows.now()

    def created(first: int, end: int) -> list[UUID]:
        between = (made + first * MINUTE, made + end * MINUTE)
        pages = StoreMaintenance(database).reservations(memory=DAY, batch=9, created=between)
        return [place.message_id for page in pages for place in page]

    assert [created(-2, -1), created(-1, 1), created(1, 2)] == [[], [message.id], []]


def test_snoozed_messages_come_in_pages_and_each_once(database: Database) -> None:
    claims = Claims(database, ttl=rows.TTL)
    tried, *snoozed = (rows.claimed(database) for _ in range(6))
    claims.record([], [Failure(tried, Outcome.TEMPORARY, "busy", HOUR)], enqueue_in=GRACE)
    claims.put_back([(claim, HOUR) for claim in snoozed[:3]], enqueue_in=-MINUTE)
    claims.put_back([(claim, 2 * HOUR) for claim in snoozed[3:]], enqueue_in=-MINUTE)
    rows.add(database)
    rows.add_due(database)
    rows.claimed(database)
    maintenance = StoreMaintenance(database)
    for batch in (1, 2, 5, 9):
        pages = list(maintenance.snoozed(batch=batch))
        assert max(map(len, pages)) <= batch
        ids = [message_id for page in pages for message_id in page]
        assert sorted(ids) == sorted(claim.message.id for claim in snoozed)
    for page in maintenance.snoozed(batch=2):
        assert maintenance.bring_forward(page) == set(page)
    assert list(maintenance.snoozed(batch=2)) == []


def test_lengths_are_added_to_the_millisecond(database: Database) -> None:
    lengths = (1.25, -0.125, 0.001, 86_400.5, 3e7, 0.0)
    query = select(database_now(), *(later(database_now(), length) for length in lengths))
    now, *moved = database.run(lambda connection: connection.execute(query).one())
    assert [instant - now for instant in moved] == [timedelta(seconds=length) for length in lengths]
    assert abs(now - rows.now()) < timedelta(seconds=5)


def marked(database: Database, *messages_: Message) -> UUID:
    """Claim messages, and return the mark of the claim."""
    mark = uuid4()
    ids = [message.id for message in messages_]
    assert len(Claims(database, ttl=rows.TTL).claim(ids, mark=mark)) == len(ids)
    return mark


def died(database: Database, message: Message) -> None:
    """Let a worker claim a message and die before it began to send it."""
    maintenance = StoreMaintenance(database)
    unbegun = maintenance.unbegun([message.id], mark=marked(database, message))
    maintenance.put_back(unbegun, wait=MINUTE)


def test_a_send_that_was_not_begun_is_due_again_and_no_attempt(database: Database) -> None:
    maintenance = StoreMaintenance(database)
    messages_ = [rows.add_due(database, on_unknown=word) for word in ("retry", "hold")]
    begun, others = rows.add_due(database), rows.claimed(database).message
    mark = marked(database, *messages_, begun)
    ids = [message.id for message in (*messages_, others)]
    assert maintenance.unbegun(ids, mark=uuid4()) == []
    unbegun = maintenance.unbegun([*ids, uuid4()], mark=mark)
    assert [claim.message_id for claim in unbegun] == [message.id for message in messages_]
    assert {claim.token for claim in unbegun} == {1}
    for _ in range(2):
        maintenance.put_back(unbegun, wait=MINUTE)
        for message in messages_:
            now = Messages(database).get(message.id)
            assert (now.status, now.attempt_count) == (Status.SCHEDULED, 0)
            assert now.next_attempt_at == message.next_attempt_at
            assert Messages(database).attempts(message.id) == []
    for message in (begun, others):
        assert Messages(database).get(message.id).status is Status.SENDING
    due = rows.take_due(maintenance, limit=9, grace=rows.SOON)
    assert {row.message_id for row in due if row.is_suspect} == {
        message.id for message in messages_
    }


def lived(database: Database, message: Message) -> None:
    """Let a worker claim a message, and leave it to rescue because the store was away."""
    maintenance = StoreMaintenance(database)
    unbegun = maintenance.unbegun([message.id], mark=marked(database, message), died=False)
    maintenance.put_back(unbegun, wait=MINUTE, died=False)


def snoozed(database: Database, message: Message) -> None:
    """Let a worker claim a message, and put it back: a limit refused it."""
    claims = Claims(database, ttl=rows.TTL)
    claims.put_back([(claim, timedelta(0)) for claim in claims.claim([message.id])],
                    enqueue_in=rows.SOON)  # fmt: skip


@pytest.mark.parametrize("between", [lived, snoozed])
def test_deaths_before_a_send_count_only_in_a_row(
    database: Database, between: Callable[[Database, Message], None]
) -> None:
    """A worker that lives shows that its message does not kill."""
    message = rows.add_due(database, max_attempts=1)
    between(database, message)
    for _ in range(2):
        died(database, message)
        between(database, message)
    now = Messages(database).get(message.id)
    assert (now.status, now.attempt_count, now.last_error) == (Status.SCHEDULED, 0, None)
    assert Messages(database).attempts(message.id) == []
    rows.change(database, message.id, last_error=UNKNOWN)
    between(database, message)
    assert Messages(database).get(message.id).last_error == UNKNOWN, "it may have killed its worker"


def test_a_message_put_back_until_after_its_expiry_is_left_to_who_tells_of_it(
    database: Database,
) -> None:
    message = rows.add_due(database, max_attempts=3, expires_at=rows.now() + MINUTE / 2)
    for _ in range(2):
        died(database, message)
    now = Messages(database).get(message.id)
    assert (now.status, now.next_attempt_at > rows.now() + MINUTE / 2) == (Status.SCHEDULED, True)


@pytest.mark.parametrize("word", ["retry", "hold"])
def test_a_message_rescued_or_claimed_meanwhile_is_not_changed(
    database: Database, word: str
) -> None:
    """But for what is held for the try that did not happen."""
    maintenance = StoreMaintenance(database)
    message = rows.add_due(database, on_unknown=word)
    unbegun = maintenance.unbegun([message.id], mark=marked(database, message))
    rows.age(database, message.id)
    assert len(maintenance.rescue(limit=9)) == 1
    if word == "retry":
        marked(database, message)
    maintenance.put_back(unbegun, wait=MINUTE)
    now = Messages(database).get(message.id)
    tries = [attempt.outcome for attempt in Messages(database).attempts(message.id)]
    if word == "hold":
        assert (now.status, now.attempt_count, tries) == (Status.SCHEDULED, 0, [])
    else:
        assert (now.status, now.attempt_count) == (Status.SENDING, 2)
        assert tries == [Outcome.UNKNOWN, None]


def permits_of(
    database: Database, *, batch: int, memory: timedelta = DAY
) -> list[tuple[UUID, int]]:
    """Read all permits; return whose they are, in order."""
    pages = list(StoreMaintenance(database).permits(memory=memory, batch=batch))
    assert all(0 < len(page) <= batch for page in pages)
    return [(taken.message_id, taken.token) for page in pages for taken in page]


def each_once(attempts: list[tuple[UUID, int]], expected: set[tuple[UUID, int]]) -> None:
    assert Counter(attempts) == Counter(dict.fromkeys(expected, 1))


@pytest.mark.parametrize("batch", [1, 4, 11])
def test_every_attempt_comes_once(database: Database, batch: int) -> None:
    """Also those that ended at one instant, and one under way beside an earlier one."""
    now = rows.now()
    expected = add_many(database, (now - n * HOUR for n in range(4)))
    expected |= add_many(database, [now - HOUR] * 5, tokens=2)
    expected |= add_many(database, (now - HOUR + timedelta(microseconds=n) for n in range(4)))
    claim = rows.claimed(database)
    overtaken = {"message_id": claim.message.id, "token": claim.token + 100}
    times = {"started_at": now, "finished_at": now}
    rows.insert_attempt(database, **overtaken, **times, outcome="unknown")
    expected |= {(claim.message.id, token) for token in (claim.token, claim.token + 100)}
    rows.add(database)
    add_many(database, [now - 2 * DAY, now - 3 * DAY])
    each_once(permits_of(database, batch=batch), expected)


def test_a_claim_that_ran_out_and_was_not_rescued_yet_comes_with_its_age(
    database: Database,
) -> None:
    claim = rows.claimed(database)
    rows.age(database, claim.message.id)
    [[taken]] = StoreMaintenance(database).permits(memory=DAY, batch=9)
    assert taken.message_id == claim.message.id
    assert timedelta(minutes=9) < taken.age < timedelta(minutes=11)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_old_attempts_are_not_looked_at(database: Database) -> None:
    now = rows.now()
    add_many(database, (now - 25 * DAY + n * MINUTE for n in range(3_000)))
    expected = add_many(database, [now - timedelta(hours=1)] * 12)
    expected |= add_many(database, (now - n * timedelta(seconds=1) for n in range(8)))
    for _ in range(3):
        claim = rows.claimed(database)
        expected.add((claim.message.id, claim.token))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # earlier tests left dead rows
    with asked_of(database.engine) as asked:
        permits = permits_of(database, batch=BATCH)
    each_once(permits, expected)
    assert asked
    assert len(asked) <= len(expected) // BATCH + 4, "pages, not rows"
    with database.engine.connect() as connection:
        for statement, parameters in asked:
            plan = plan_of(connection, statement, parameters, "ANALYZE")
            assert "dispatcher_attempts" not in scans(plan), statement
            assert touched(plan) < 50 * BATCH, statement


def test_a_day_without_a_partition_is_read_too(database: Database) -> None:
    """Else a rebuild would forget what ended in it, and quotas and limits would be exceeded."""
    expected = add_many(database, [rows.now() - timedelta(hours=25)] * 5)
    each_once(permits_of(database, batch=3, memory=3 * DAY), expected)
    pages = StoreMaintenance(database).reservations(memory=3 * DAY, batch=3)
    assert sorted(row.message_id for page in pages for row in page) == sorted(
        message_id for message_id, _ in expected
    )
