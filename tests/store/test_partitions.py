"""PostgreSQL: what lives lies in one partition, what has ended in one for each day of its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from sqlalchemy import Executable, Text, cast, insert, literal, literal_column, select, text, update
from sqlalchemy.dialects.postgresql import REGCLASS
from sqlalchemy.orm import Session

from dispatcher import Message, Status
from dispatcher.faults import InjectedFault
from dispatcher.message import Outcome
from dispatcher.store.claims import Claims, Failure, Success
from dispatcher.store.database import Database
from dispatcher.store.engines import partitions
from dispatcher.store.engines.base import Days
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.store.messages import Messages, StoppedMessages
from dispatcher.store.migrate import migrate
from dispatcher.store.outbox import JoinedMessages, JoinedTransaction
from dispatcher.store.schema import Addition, to_values
from dispatcher.store.survey import StoreSurvey
from tests.store.plans import waiting
from tests.support import rows
from tests.support.doubles import raising
from tests.support.migrations import HEAD
from tests.support.servers import PostgresServer
from tests.support.tables import attempts, messages
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
    day: date = run(database, "SELECT CAST(now() AT TIME ZONE 'UTC' AS date)")[0][0]
    return day


def days(database: Database, table: str) -> set[date]:
    """Return the days that have a partition of their own."""
    made = run(
        database,
        "SELECT relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
        "WHERE inhparent = CAST(:history AS regclass)",
        history=f"{table}_history",
    )
    names = (name.removeprefix(f"{table}_history_") for (name,) in made)
    return {datetime.strptime(name, "%Y%m%d").date() for name in names if name.isdigit()}  # noqa: DTZ007 - a day


def standing(database: Database) -> Days | None:
    """Return for how many days there are partitions, and whether rows lie in none."""
    facts = StoreSurvey(database).housekeeping()
    return facts and facts.days


def make_day(database: Database, day: date, schema: str = DAYS) -> None:
    """Make the partitions of a day that is over, as maintenance did before it."""
    start = datetime.combine(day, time(), UTC)
    for table in SPLIT:
        run(
            database,
            f"CREATE TABLE {schema}.{table}_history_{day:%Y%m%d} PARTITION OF {table}_history "
            f"FOR VALUES FROM ('{start}') TO ('{start + DAY}')",
        )


def lies_in(database: Database, message: Message) -> tuple[str, str]:
    """Return the partitions of a message and of its attempt."""
    name = cast(cast(literal_column("tableoid"), REGCLASS), Text)
    of_message = select(name).select_from(messages).where(messages.c.id == message.id)
    of_attempt = select(name).select_from(attempts).where(attempts.c.message_id == message.id)
    return run(database, of_message)[0][0], run(database, of_attempt)[0][0]


@pytest.fixture
def day(database: Database) -> date:
    """Make the partitions of a day that is older than the retention."""
    made = today(database) - OLD
    make_day(database, made)
    return made


@contextmanager
def in_use(database: Database, *statements: str | Executable) -> Iterator[Any]:
    """Run statements in a transaction of another program that stays open inside."""
    url = database.url.render_as_string(hide_password=False)
    with closing(Database(url)) as other, other.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        for statement in statements:
            connection.execute(text(statement) if isinstance(statement, str) else statement).close()
        yield connection
        connection.exec_driver_sql("ROLLBACK")


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
        sent, snoozed, retried, *more = claims.claim([message.id for message in due])
        assert claims.renew([sent]) == {sent.message.id}
        claims.put_back([(snoozed, rows.SOON)], enqueue_in=rows.SOON)
        claims.record([Success(sent, None)], [], enqueue_in=rows.SOON)
        claims.enqueue_when_due([snoozed.message.id])
        store.enqueue_again([snoozed.message.id])
        assert not claims.unclaimed([claim.message.id for claim in more]).waits
        assert maintenance.rescue(limit=9) == []
    with in_use(database, *(lock for lock in locks if SPLIT[0] in lock)):
        failure = Failure(retried, Outcome.TEMPORARY, "busy", rows.SOON)
        claims.record([], [failure], enqueue_in=rows.SOON)
    assert store.get(sent.message.id).status is Status.SENT


def test_a_prune_makes_the_coming_days_and_drops_the_old_ones(
    database: Database, day: date
) -> None:
    tomorrow = today(database) + DAY
    for table in SPLIT:
        run(database, f"DROP TABLE {DAYS}.{table}_history_{tomorrow:%Y%m%d}")
    gone = rows.ended(database, OLD, idempotency_key="old")
    kept = rows.ended(database, RETENTION - 2 * DAY, idempotency_key="new")
    maintenance = StoreMaintenance(database)
    assert maintenance.keep_days(older_than=RETENTION) == [day]
    for table in SPLIT:
        assert tomorrow in days(database, table)
        assert day not in days(database, table)
    store = Messages(database)
    assert (store.with_keys(["old"]).get("old"), store.attempts(gone.id)) == (None, [])
    assert [message.id for message, _ in store.with_keys(["new"]).values()] == [kept.id]
    assert maintenance.prune(older_than=RETENTION, limit=9) == 0
    assert standing(database) == (3, True)


def test_a_day_that_goes_leaves_a_key_to_the_message_that_took_it_over(
    database: Database, day: date
) -> None:
    kept, gone = rows.add(database, idempotency_key="key"), rows.ended(database, OLD)
    rows.change(database, gone.id, idempotency_key="key")
    assert StoreMaintenance(database).keep_days(older_than=RETENTION) == [day]
    assert Messages(database).with_keys(["key"])["key"][0].id == kept.id


@pytest.mark.parametrize(
    "needed",
    [
        {"status": "cancelled", "reserved": True},
        {"status_url": "https://example.org", "notified_status": "scheduled"},
    ],
    ids=["unreleased", "unreported"],
)
def test_a_day_stays_while_something_remains_to_be_done(
    database: Database, day: date, needed: dict[str, Any]
) -> None:
    message, other = rows.ended(database, OLD), rows.ended(database, OLD)
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
    database: Database, day: date
) -> None:
    message = rows.ended(database, OLD)
    rows.change(database, message.id, status="held", finished_at=None)
    run(database, "UPDATE dispatcher_attempts SET outcome = 'unknown'")
    maintenance = StoreMaintenance(database)
    maintenance.keep_days(older_than=RETENTION)
    [attempt] = Messages(database).attempts(message.id)
    assert attempt.outcome is Outcome.UNKNOWN
    run(database, "DELETE FROM dispatcher_messages")
    maintenance.keep_days(older_than=RETENTION)
    assert day not in days(database, "dispatcher_attempts")


def test_a_day_that_is_read_is_dropped_later_and_nothing_waits_for_it(
    database: Database, day: date
) -> None:
    rows.ended(database, OLD)
    maintenance = StoreMaintenance(database)
    with in_use(database, "SELECT count(*) FROM dispatcher_messages"):
        assert maintenance.keep_days(older_than=RETENTION) == []
        rows.add(database)
    assert maintenance.keep_days(older_than=RETENTION) == [day]


def test_a_callers_transaction_that_asks_for_a_new_key_keeps_no_day(
    database: Database, day: date
) -> None:
    with Session(database.engine.execution_options(isolation_level="READ COMMITTED")) as session:
        joined: JoinedTransaction[None] = JoinedMessages(database).join(session, lambda *_: None)
        assert joined.with_keys(["new"]) == {}
        assert StoreMaintenance(database).keep_days(older_than=RETENTION) == [day]


def test_messages_are_deleted_one_by_one_where_their_day_stays_for_another(
    database: Database,
) -> None:
    barely, long_ago = today(database) - RETENTION - DAY, today(database) - OLD
    for day in (barely, long_ago):
        make_day(database, day)
    kept, gone = rows.ended(database, RETENTION + DAY), rows.ended(database, OLD)
    survey = StoreSurvey(database)
    assert 7 * DAY < survey.not_pruned(retention=RETENTION) <= 9 * DAY
    assert StoreMaintenance(database).prune(older_than=RETENTION, limit=9) == 1
    assert survey.not_pruned(retention=RETENTION) == timedelta(0)
    ids = Messages(database).find_many([kept.id, gone.id])
    assert [message.id for message in ids] == [kept.id]


def test_a_message_that_is_retried_while_its_day_goes_keeps_its_key_or_is_gone(
    database: Database, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = rows.ended(database, OLD, idempotency_key="old")
    rows.change(database, message.id, status="failed")
    free, failed = partitions._free_keys, StoppedMessages(database)

    def free_after_a_retry(*arguments: Any) -> None:
        failed.retry([(stopped, 1) for stopped in failed.look([message.id]).values()])
        free(*arguments)

    monkeypatch.setattr(partitions, "_free_keys", free_after_a_retry)
    StoreMaintenance(database).keep_days(older_than=RETENTION)
    assert Messages(database).with_keys(["old"]).get("old") is None
    assert rows.count(database) == 0


def test_a_day_whose_sweep_died_before_it_was_dropped_is_dropped_by_the_next(
    database: Database, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.ended(database, OLD, idempotency_key="old")
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
    rows.ended(database, 2 * DAY)
    maintenance = StoreMaintenance(database)
    assert DAY < StoreSurvey(database).not_pruned(retention=DAY / 2) < 2 * DAY
    assert maintenance.prune(older_than=DAY / 2, limit=9) == 1
    assert maintenance.keep_days(older_than=DAY / 2) == [day]
    for table in SPLIT:
        assert day not in days(database, table)


def test_old_attempts_of_a_day_without_a_partition_go_when_their_message_is_gone(
    database: Database,
) -> None:
    message = rows.ended(database, OLD)
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
        message = rows.ended(database, timedelta(0))
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
        wait_until(lambda: waiting(database) or coming.done())
        other.exec_driver_sql("COMMIT")
        yield coming


def test_a_cancel_that_waits_for_the_end_of_its_message_finds_it_sent(database: Database) -> None:
    message = rows.add(database)
    cancel = lambda: Messages(database).cancel([message.id])  # noqa: E731 - for a thread
    with while_another_ends_it(database, message, work=cancel) as coming:
        assert coming.result().rows[message.id].message.status is Status.SENT
    assert rows.count(database) == 1


def test_a_message_whose_first_insert_is_not_answered_is_not_stored_twice(
    database: Database,
) -> None:
    """It ends before the second INSERT, which saw neither of its partitions, looks at the keys."""
    message = rows.a_message()
    copy = rows.add(database)
    names = [column.name for column in messages.columns if column.name != "id"]
    columns = [literal(message.id, messages.c.id.type), *(messages.c[name] for name in names)]
    like_it = select(*columns).where(messages.c.id == copy.id)
    first = insert(messages).from_select(["id", *names], like_it)

    def again() -> Message:
        return Messages(database).add(rows.addition(message), perhaps_stored=True)

    with while_another_ends_it(database, message, first, work=again) as coming:
        assert coming.result().id == message.id
    assert [row.status for row in rows.listed(database) if row.id == message.id] == [Status.SENT]


@pytest.mark.parametrize("how", ["alone", "in a batch"])
def test_an_insert_that_the_server_runs_too_late_stores_nothing(
    database: Database, how: str
) -> None:
    """Its client gave it up and stored the message again, which was sent meanwhile."""
    message = replace(rows.ended(database, timedelta(0)), status=Status.SCHEDULED)
    late = Addition(message, message.send_at, None, "{}")
    if how == "alone":
        insert_it = Messages(database)._insert_directly
        assert insert_it is not None
        assert not insert_it((*to_values(late), None))
    else:
        batch = [late, late._replace(message=rows.a_message())]
        assert Messages(database).add_together(batch, perhaps_stored=True) is False
    assert rows.count(database) == 1


def test_a_role_that_does_not_own_the_tables_prunes_one_by_one(
    database: Database, day: date
) -> None:
    rows.ended(database, OLD)
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
def modest(
    database_url: str, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> Iterator[Database]:
    """Give the database of a role that may not make schemas."""
    del database_url
    name = postgres.create_database()
    postgres.execute("CREATE ROLE modest LOGIN", name)
    postgres.execute("GRANT CREATE ON SCHEMA public TO modest", name)
    with closing(Database(postgres.url(name).replace("postgres@", "modest@"))) as database:
        with caplog.at_level(logging.WARNING):
            assert migrate(database) == HEAD
        assert "administrator may run: CREATE SCHEMA dispatcher_days " in caplog.text
        yield database
    postgres.drop_database(name)
    postgres.execute("DROP ROLE modest")


def test_without_the_right_to_a_schema_days_lie_beside_the_tables(
    modest: Database, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until an administrator makes it: the days after that lie there."""
    day, name, maintenance = today(modest), modest.url.database or "", StoreMaintenance(modest)
    message = rows.ended(modest, timedelta(0))
    assert lies_in(modest, message) == tuple(f"{table}_history_{day:%Y%m%d}" for table in SPLIT)
    assert standing(modest) == (3, False)
    old = day - OLD
    make_day(modest, old, "public")
    rows.ended(modest, OLD)
    assert maintenance.keep_days(older_than=RETENTION) == [old]
    postgres.execute(f"CREATE SCHEMA {DAYS}", name)
    monkeypatch.setattr(partitions, "_DAYS_AHEAD", 4)
    maintenance.keep_days(older_than=RETENTION)
    there = "SELECT count(*) FROM pg_tables WHERE schemaname = :days"
    assert (standing(modest), run(modest, there, days=DAYS)) == ((4, False), [(0,)])
    postgres.execute(f"ALTER SCHEMA {DAYS} OWNER TO modest", name)
    monkeypatch.setattr(partitions, "_DAYS_AHEAD", 5)
    maintenance.keep_days(older_than=RETENTION)
    assert run(modest, there, days=DAYS) == [(len(SPLIT),)]
    assert standing(modest) == (5, False)
