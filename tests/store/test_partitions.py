"""PostgreSQL: what lives lies in one partition, what has ended in one for each day of its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable, Text, cast, insert, literal, literal_column, select, text, update
from sqlalchemy.dialects.postgresql import REGCLASS

from dispatcher import Message, Status
from dispatcher.faults import InjectedFault
from dispatcher.message import Outcome
from dispatcher.store import (
    Addition,
    Claims,
    Database,
    Days,
    FailedMessages,
    Failure,
    Messages,
    StoreMaintenance,
    StoreSurvey,
    Success,
    migrate,
)
from dispatcher.store.engines import partitions
from dispatcher.store.schema import to_values
from tests.support import rows
from tests.support.doubles import raising
from tests.support.migrations import HEAD, INDEXED, NEXT, become_next_version
from tests.support.servers import PostgresServer
from tests.support.tables import NAMES, attempts, messages
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

DAY = timedelta(days=1)
RETENTION = 30 * DAY
OLD = 40 * DAY
SPLIT = ("dispatcher_messages", "dispatcher_attempts")
DAYS = "dispatcher_days"


def run(database: Database, statement: Any, **values: Any) -> Any:
    """Run a statement; return the rows, if it has any."""

    def work(connection: Any) -> Any:
        query = text(statement) if isinstance(statement, str) else statement
        done = connection.execute(query, values)
        return done.all() if done.returns_rows else None

    return database.run(work)


def today(database: Database) -> date:
    """Return the day by the database's clock, in UTC."""
    found: date = run(database, "SELECT CAST(now() AT TIME ZONE 'UTC' AS date)")[0][0]
    return found


def days(database: Database, table: str) -> set[date]:
    """Return the days that have a partition of their own."""
    found = run(
        database,
        "SELECT relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
        "WHERE inhparent = CAST(:history AS regclass)",
        history=f"{table}_history",
    )
    names = (name.removeprefix(f"{table}_history_") for (name,) in found)
    return {datetime.strptime(each, "%Y%m%d").date() for each in names if each.isdigit()}  # noqa: DTZ007 - a day


def standing(database: Database) -> Days | None:
    """Return for how many days there are partitions, and whether rows lie in none."""
    found = StoreSurvey(database).housekeeping()
    return found and found.days


def make_day(database: Database, day: date, length: timedelta = DAY, schema: str = DAYS) -> None:
    """Make the partitions of a day that is over, as maintenance did before it."""
    start = datetime.combine(day, time(), UTC)
    for table in SPLIT:
        run(
            database,
            f"CREATE TABLE {schema}.{table}_history_{day:%Y%m%d} PARTITION OF {table}_history "
            f"FOR VALUES FROM ('{start}') TO ('{start + length}')",
        )


def ended(database: Database, ago: timedelta, **changes: Any) -> Message:
    """Store a message that was sent so long ago, and its attempt."""
    claim = rows.claimed(database, **changes)
    Claims(database, ttl=rows.TTL).record([Success(claim, None)], [], enqueue_in=rows.SOON)
    at = rows.now() - ago
    rows.change(database, claim.message.id, finished_at=at)
    mine = attempts.c.message_id == claim.message.id
    run(database, update(attempts).where(mine).values(finished_at=at))
    return claim.message


def lies_in(database: Database, message: Message) -> tuple[str, str]:
    """Return the partitions of a message and of its attempt."""
    name = cast(cast(literal_column("tableoid"), REGCLASS), Text)
    of_message = select(name).select_from(messages).where(messages.c.id == message.id)
    of_attempt = select(name).select_from(attempts).where(attempts.c.message_id == message.id)
    return run(database, of_message)[0][0], run(database, of_attempt)[0][0]


@contextmanager
def in_use(database: Database, *statements: str | Executable) -> Iterator[Any]:
    """Run statements in a transaction of another program that stays open inside."""
    url = database.url.render_as_string(hide_password=False)
    with closing(Database(url)) as other, other.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        for each in statements:
            connection.execute(text(each) if isinstance(each, str) else each).close()
        yield connection
        connection.exec_driver_sql("ROLLBACK")


def waits_for_a_lock(database: Database) -> bool:
    """Return whether some statement in this database waits for another transaction."""
    found = run(
        database,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'",
    )
    return bool(found[0][0])


def test_a_message_moves_to_its_day_when_it_ends_and_back_when_it_is_retried(
    database: Database,
) -> None:
    claim, day = rows.claimed(database), f"{today(database):%Y%m%d}"
    ended_today = tuple(f"{DAYS}.{table}_history_{day}" for table in SPLIT)
    assert lies_in(database, claim.message) == tuple(f"{table}_live" for table in SPLIT)
    failure = Failure(claim, Outcome.PERMANENT, "refused", wait=None)
    Claims(database, ttl=rows.TTL).record([], [failure], enqueue_in=rows.SOON)
    assert lies_in(database, claim.message) == ended_today
    rows.change(database, claim.message.id, status="scheduled", finished_at=None)
    assert lies_in(database, claim.message) == (f"{SPLIT[0]}_live", ended_today[1])


def test_the_schema_of_the_tables_gets_no_table_for_a_day(database: Database) -> None:
    found = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = "
    fixed = {f"{table}_{name}" for table in SPLIT for name in ("live", "history", "history_other")}
    assert {each for (each,) in run(database, f"{found} 'public'::regnamespace")} == NAMES | fixed
    assert len(run(database, f"{found} '{DAYS}'::regnamespace")) == 2 * 4


def test_claims_and_the_sweep_look_at_live_messages_alone(database: Database) -> None:
    """Each would wait for the locks on all other partitions, if it read one of them."""
    claims, store = Claims(database, ttl=rows.TTL), Messages(database)
    maintenance = StoreMaintenance(database)
    due = [rows.add_due(database) for _ in range(4)]
    locks = [
        f"LOCK TABLE ONLY {DAYS}.{table}_history_{day:%Y%m%d} IN ACCESS EXCLUSIVE MODE"
        for table in SPLIT
        for day in days(database, table) - {today(database)}
    ] + [f"LOCK TABLE {table}_history_other IN ACCESS EXCLUSIVE MODE" for table in SPLIT]
    with in_use(database, *locks):
        assert len(rows.take_due(maintenance, limit=9, grace=rows.SOON)) == 4
        sent, snoozed, *more = claims.claim([each.id for each in due])
        assert claims.renew([sent]) == {sent.message.id}
        claims.put_back([(snoozed, rows.SOON)], enqueue_in=rows.SOON)
        claims.record([Success(sent, None)], [], enqueue_in=rows.SOON)
        claims.enqueue_when_due([snoozed.message.id])
        store.enqueue_again([snoozed.message.id])
        assert not claims.unclaimed([each.message.id for each in more]).waits
        assert maintenance.rescue(limit=9) == []
    assert store.get(sent.message.id).status is Status.SENT


def test_a_prune_makes_the_coming_days_and_drops_the_old_ones(database: Database) -> None:
    day = today(database) - OLD
    make_day(database, day)
    tomorrow = today(database) + DAY
    for table in SPLIT:
        run(database, f"DROP TABLE {DAYS}.{table}_history_{tomorrow:%Y%m%d}")
    gone = ended(database, OLD, idempotency_key="old")
    kept = ended(database, RETENTION - 2 * DAY, idempotency_key="new")
    maintenance = StoreMaintenance(database)
    assert maintenance.keep_days(older_than=RETENTION) == [day]
    for table in SPLIT:
        assert tomorrow in days(database, table)
        assert day not in days(database, table)
    store = Messages(database)
    assert (store.with_key("old"), store.attempts(gone.id)) == (None, [])
    found = store.with_key("new")
    assert found is not None
    assert found[0].id == kept.id
    assert maintenance.prune(older_than=RETENTION, limit=9) == 0
    assert standing(database) == (3, True)


@pytest.mark.parametrize(
    "needed",
    [
        {"status": "cancelled", "reserved": True},
        {"status_url": "https://example.org", "notified_status": "scheduled"},
    ],
    ids=["unreleased", "unreported"],
)
def test_a_day_stays_while_something_remains_to_be_done(
    database: Database, needed: dict[str, Any]
) -> None:
    day = today(database) - OLD
    make_day(database, day)
    message, other = ended(database, OLD), ended(database, OLD)
    rows.change(database, message.id, **needed)
    maintenance = StoreMaintenance(database)
    assert maintenance.keep_days(older_than=RETENTION) == []
    assert maintenance.prune(older_than=RETENTION, limit=9) == 1
    assert Messages(database).get(message.id).id == message.id
    assert Messages(database).attempts(other.id) == []
    rows.change(database, message.id, reserved=False, notified_status=None, status_url=None)
    assert maintenance.keep_days(older_than=RETENTION) == [day]
    assert rows.count(database) == 0


def test_the_attempt_that_made_a_message_held_stays_as_long_as_the_message(
    database: Database,
) -> None:
    day = today(database) - OLD
    make_day(database, day)
    message = ended(database, OLD)
    rows.change(database, message.id, status="held", finished_at=None)
    run(database, "UPDATE dispatcher_attempts SET outcome = 'unknown'")
    maintenance = StoreMaintenance(database)
    maintenance.keep_days(older_than=RETENTION)
    [attempt] = Messages(database).attempts(message.id)
    assert attempt.outcome is Outcome.UNKNOWN
    run(database, "DELETE FROM dispatcher_messages")
    maintenance.keep_days(older_than=RETENTION)
    assert day not in days(database, "dispatcher_attempts")


def test_a_day_that_is_read_is_dropped_later_and_nothing_waits_for_it(database: Database) -> None:
    day = today(database) - OLD
    make_day(database, day)
    ended(database, OLD)
    maintenance = StoreMaintenance(database)
    with in_use(database, "SELECT count(*) FROM dispatcher_messages"):
        assert maintenance.keep_days(older_than=RETENTION) == []
        rows.add(database)
    assert maintenance.keep_days(older_than=RETENTION) == [day]


def test_messages_are_deleted_one_by_one_where_their_day_stays_for_another(
    database: Database,
) -> None:
    barely, long_ago = today(database) - RETENTION - DAY, today(database) - OLD
    for each in (barely, long_ago):
        make_day(database, each)
    kept, gone = ended(database, RETENTION + DAY), ended(database, OLD)
    assert StoreMaintenance(database).prune(older_than=RETENTION, limit=9) == 1
    ids = Messages(database).find_many([kept.id, gone.id])
    assert [each.id for each in ids] == [kept.id]


def test_a_message_that_is_retried_while_its_day_goes_keeps_its_key_or_is_gone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database, today(database) - OLD)
    message = ended(database, OLD, idempotency_key="old")
    rows.change(database, message.id, status="failed")
    free, failed = partitions._free_keys, FailedMessages(database)

    def free_after_a_retry(*given: Any) -> None:
        found = [(each, 1) for each in failed.look([message.id]).values()]
        failed.retry(found)
        free(*given)

    monkeypatch.setattr(partitions, "_free_keys", free_after_a_retry)
    StoreMaintenance(database).keep_days(older_than=RETENTION)
    assert Messages(database).with_key("old") is None
    assert rows.count(database) == 0


def test_a_day_whose_sweep_died_before_it_was_dropped_is_dropped_by_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database, today(database) - OLD)
    ended(database, OLD, idempotency_key="old")
    with monkeypatch.context() as patch:
        patch.setattr(partitions, "_free_keys", lambda *_: raising(InjectedFault())())
        with pytest.raises(InjectedFault):
            StoreMaintenance(database).keep_days(older_than=RETENTION)
    key = "SELECT count(*) FROM dispatcher_idempotency_keys"
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE '%detached%' AND relkind = 'r'"
    assert (run(database, key)[0][0], run(database, left)[0][0]) == (1, 1)
    StoreMaintenance(database).keep_days(older_than=RETENTION)
    assert (run(database, key)[0][0], run(database, left)[0][0]) == (0, 0)


def test_with_a_short_retention_the_days_go_too_once_their_messages_are_gone(
    database: Database,
) -> None:
    day = today(database) - 2 * DAY
    make_day(database, day)
    ended(database, 2 * DAY)
    maintenance = StoreMaintenance(database)
    assert maintenance.prune(older_than=DAY / 2, limit=9) == 1
    assert maintenance.keep_days(older_than=DAY / 2) == [day]
    for table in SPLIT:
        assert day not in days(database, table)


def test_old_attempts_of_a_day_without_a_partition_go_when_their_message_is_gone(
    database: Database,
) -> None:
    message = ended(database, OLD)
    run(database, "DELETE FROM dispatcher_messages")
    maintenance = StoreMaintenance(database)
    maintenance.keep_days(older_than=60 * DAY)
    assert len(Messages(database).attempts(message.id)) == 1
    maintenance.keep_days(older_than=RETENTION)
    assert Messages(database).attempts(message.id) == []


def test_days_behind_a_missing_one_are_not_counted(database: Database) -> None:
    run(database, f"DROP TABLE {DAYS}.{SPLIT[0]}_history_{today(database) + 2 * DAY:%Y%m%d}")
    try:
        assert standing(database) == (1, False)
    finally:
        StoreMaintenance(database).keep_days(older_than=RETENTION)


def test_an_end_on_a_day_without_a_partition_is_recorded(database: Database) -> None:
    for table in SPLIT:
        run(database, f"DROP TABLE {DAYS}.{table}_history_{today(database):%Y%m%d}")
    try:
        message = ended(database, timedelta(0))
        assert lies_in(database, message) == tuple(f"{table}_history_other" for table in SPLIT)
        assert StoreMaintenance(database).keep_days(older_than=RETENTION) == []
        rows.change(database, message.id, finished_at=rows.now() - OLD)
        assert StoreMaintenance(database).prune(older_than=RETENTION, limit=9) == 1
    finally:
        run(database, "TRUNCATE dispatcher_messages, dispatcher_attempts")
        StoreMaintenance(database).keep_days(older_than=RETENTION)


@contextmanager
def while_another_ends_it(
    database: Database, message: Message, *before: Executable, work: Callable[[], Any]
) -> Iterator[Future[Any]]:
    """Start ``work`` while another transaction moves the message to its day; it then commits."""
    this = update(messages).where(messages.c.id == message.id)
    end = this.values(status="sent", finished_at=rows.now())
    with in_use(database, *before, end) as other, ThreadPoolExecutor(1) as thread:
        coming = thread.submit(work)
        wait_until(lambda: waits_for_a_lock(database) or coming.done())
        other.exec_driver_sql("COMMIT")
        yield coming


def test_a_cancel_that_waits_for_the_end_of_its_message_finds_it_sent(database: Database) -> None:
    message = rows.add(database)
    cancel = lambda: Messages(database).cancel([message.id])  # noqa: E731 - for a thread
    with while_another_ends_it(database, message, work=cancel) as coming:
        assert coming.result().found[message.id].message.status is Status.SENT
    assert rows.count(database) == 1


def test_a_message_whose_first_insert_is_not_answered_is_not_stored_twice(
    database: Database,
) -> None:
    """It ends before the second INSERT, which saw neither of its partitions, looks at the keys."""
    message = rows.a_message()
    copy = rows.add(database)
    names = [each.name for each in messages.columns if each.name != "id"]
    columns = [literal(message.id, messages.c.id.type), *(messages.c[name] for name in names)]
    like_it = select(*columns).where(messages.c.id == copy.id)
    first = insert(messages).from_select(["id", *names], like_it)

    def again() -> Message:
        return Messages(database).add(rows.addition(message), perhaps_stored=True)

    with while_another_ends_it(database, message, first, work=again) as coming:
        assert coming.result().id == message.id
    assert [each.status for each in rows.listed(database) if each.id == message.id] == [Status.SENT]


@pytest.mark.parametrize("how", ["alone", "in a batch"])
def test_an_insert_that_the_server_runs_too_late_stores_nothing(
    database: Database, how: str
) -> None:
    """Its client gave it up and stored the message again, which was sent meanwhile."""
    message = replace(ended(database, timedelta(0)), status=Status.SCHEDULED)
    late = Addition(message, message.send_at, None, "{}")
    if how == "alone":
        insert_it = Messages(database)._insert_directly
        assert insert_it is not None
        assert not insert_it((*to_values(late), None))
    else:
        batch = [late, late._replace(message=rows.a_message())]
        assert Messages(database).add_together(batch, perhaps_stored=True) is False
    assert rows.count(database) == 1


def test_a_role_that_does_not_own_the_tables_prunes_one_by_one(database: Database) -> None:
    day = today(database) - OLD
    make_day(database, day)
    ended(database, OLD)
    run(database, "CREATE ROLE dispatcher_guest")
    try:
        run(database, "GRANT USAGE ON SCHEMA public TO dispatcher_guest")
        for table in (*SPLIT, "dispatcher_idempotency_keys"):
            run(database, f"GRANT SELECT, UPDATE, DELETE ON {table} TO dispatcher_guest")
        url = database.url.render_as_string(hide_password=False)
        with closing(Database(f"{url}&options=-crole%3Ddispatcher_guest")) as theirs:
            maintenance = StoreMaintenance(theirs)
            assert maintenance.keep_days(older_than=RETENTION) == []
            assert maintenance.prune(older_than=RETENTION, limit=9) == 1
            assert standing(theirs) == (3, False)
    finally:
        run(database, "DROP OWNED BY dispatcher_guest")
        run(database, "DROP ROLE dispatcher_guest")
        StoreMaintenance(database).keep_days(older_than=RETENTION)


@pytest.fixture
def weekly(
    database_url: str, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> Iterator[Database]:
    """Give the database of a role that may not make schemas."""
    del database_url
    name = postgres.create_database()
    postgres.execute("CREATE ROLE weekly LOGIN", name)
    postgres.execute("GRANT CREATE ON SCHEMA public TO weekly", name)
    with closing(Database(postgres.url(name).replace("postgres@", "weekly@"))) as database:
        with caplog.at_level(logging.WARNING):
            assert migrate(database) == HEAD
        assert "for days, as an administrator: CREATE SCHEMA dispatcher_days " in caplog.text
        yield database
    postgres.drop_database(name)
    postgres.execute("DROP ROLE weekly")


def monday(day: date) -> date:
    return day - day.weekday() * DAY


def starts(database: Database, schema: str) -> list[date]:
    """Return the first day of each partition of messages in a schema."""
    query = (
        "SELECT CAST(substring(pg_get_expr(relpartbound, oid) FROM 'FROM ..(.{10})') AS date) "
        "FROM pg_class WHERE relname ~ '^dispatcher_messages_history_[0-9]+$' AND "
        "relnamespace::regnamespace::text = :schema ORDER BY 1"
    )
    return [each for (each,) in run(database, query, schema=schema)]


def test_without_the_right_to_a_schema_partitions_are_weeks(
    weekly: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, maintenance = today(weekly), StoreMaintenance(weekly)
    assert standing(weekly) == (3, False)
    monkeypatch.setattr(partitions, "_DAYS_AHEAD", 13)
    assert maintenance.keep_days(older_than=RETENTION) == []
    coming = [first, *(monday(first) + number * 7 * DAY for number in (1, 2))]
    assert starts(weekly, "public") in (coming, coming[:2])
    assert standing(weekly) == (13, False)
    message = ended(weekly, timedelta(0))
    week = f"_history_{first:%Y%m%d}"
    assert lies_in(weekly, message) == tuple(f"{table}{week}" for table in SPLIT)
    become_next_version(tmp_path, monkeypatch, INDEXED)
    assert migrate(weekly) == NEXT
    valid = "SELECT bool_and(indisvalid) FROM pg_index WHERE indexrelid::regclass::text ~ 'note'"
    assert run(weekly, valid) == [(True,)]


def test_weeks_are_dropped_and_what_needs_them_keeps_others_for_a_day(weekly: Database) -> None:
    day, maintenance = today(weekly), StoreMaintenance(weekly)
    retention = 4 * 7 * DAY + day.weekday() * DAY
    week = monday(day) - 5 * 7 * DAY  # it ended when the present retention began
    make_day(weekly, week, 7 * DAY, "public")
    age = rows.now() - datetime.combine(week, time(), UTC)
    monday_s, sunday_s = (ended(weekly, age - number * DAY) for number in (0, 6))
    kept = ended(weekly, age)
    rows.change(weekly, kept.id, status="cancelled", reserved=True)
    survey = StoreSurvey(weekly)
    assert maintenance.keep_days(older_than=retention + DAY) == []
    assert maintenance.keep_days(older_than=retention) == []
    assert maintenance.prune(older_than=retention, limit=9) == 0
    assert survey.not_pruned(retention=retention) == timedelta(0)
    assert timedelta(0) < survey.not_pruned(retention=retention - DAY) < DAY
    assert maintenance.prune(older_than=retention - DAY, limit=9) == 2
    assert Messages(weekly).find_many([monday_s.id, sunday_s.id]) == []
    rows.change(weekly, kept.id, reserved=False)
    assert maintenance.keep_days(older_than=retention + DAY) == []
    assert maintenance.keep_days(older_than=retention) == [week + n * DAY for n in range(7)]
    assert week not in starts(weekly, "public")
    assert rows.count(weekly) == 0


def test_with_a_retention_of_less_than_two_weeks_messages_do_not_wait_for_their_week(
    weekly: Database,
) -> None:
    ended(weekly, 9 * DAY)
    assert StoreMaintenance(weekly).prune(older_than=8 * DAY, limit=9) == 1


def test_days_follow_weeks_where_an_administrator_makes_the_schema_later(
    weekly: Database, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance, week = StoreMaintenance(weekly), monday(today(weekly) - 2 * OLD)
    name = weekly.url.database or ""
    make_day(weekly, week, 7 * DAY, "public")
    postgres.execute(f"CREATE SCHEMA {DAYS}", name)
    maintenance.keep_days(older_than=4 * OLD)
    assert starts(weekly, DAYS) == []
    postgres.execute(f"ALTER SCHEMA {DAYS} OWNER TO weekly", name)
    monkeypatch.setattr(partitions, "_DAYS_AHEAD", 13)
    weeks = starts(weekly, "public")
    assert maintenance.keep_days(older_than=4 * OLD) == []
    made = starts(weekly, DAYS)
    assert made[0] == monday(weeks[-1]) + 7 * DAY
    assert made == [made[0] + number * DAY for number in range(len(made))]
    assert made[-1] == today(weekly) + 13 * DAY
    assert standing(weekly) == (13, False)
    make_day(weekly, week + 7 * DAY)
    assert len(maintenance.keep_days(older_than=OLD)) == 8
    assert starts(weekly, DAYS) == made
    postgres.execute(f"ALTER SCHEMA {DAYS} OWNER TO postgres", name)
    monkeypatch.setattr(partitions, "_DAYS_AHEAD", 20)
    maintenance.keep_days(older_than=OLD)
    assert starts(weekly, "public")[len(weeks) - 1] == made[-1] + DAY
    assert standing(weekly) == (20, False)
