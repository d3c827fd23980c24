"""``doctor`` about what makes the tables grow: each cause is made, found, and gone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from dispatcher.message import Status
from dispatcher.operations import checks
from dispatcher.operations.checks import Level
from dispatcher.store.database import Database
from dispatcher.store.engines import postgresql
from dispatcher.store.engines.base import Backlog, Days, Housekeeping, Slot
from dispatcher.store.migrate import migrate
from dispatcher.store.survey import StoreSurvey
from dispatcher.telemetry.liveness import Kind
from dispatcher.times.clock import SystemClock
from tests.support.examining import OK, WARNING, finding_of, judged
from tests.support.house import House
from tests.support.house_fixtures import Build
from tests.support.mariadb import MariaDBServer
from tests.support.servers import PostgresServer
from tests.support.waiting import wait_until

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
on = {
    kind: pytest.mark.parametrize("database_url", [kind], indirect=True)
    for kind in ("sqlite", "postgresql", "mariadb")
}
CLERK = "dispatcher_clerk"


@pytest.fixture
def house(build: Build) -> House:
    return build(clock=SystemClock())


@contextmanager
def open_elsewhere(house: House, *statements: str) -> Iterator[None]:
    """Run statements in a transaction of another program, which stays open inside."""
    with closing(Database(house.url)) as other, other.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        for statement in statements:
            connection.exec_driver_sql(statement).close()
        yield
        connection.exec_driver_sql("ROLLBACK")


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_transaction_that_stays_open_is_warned_of(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LONG_OPEN", timedelta(0))
    house.submit(send_in=HOUR)
    with open_elsewhere(house, "UPDATE dispatcher_messages SET last_error = 'x'"):
        judged(house, "store.transactions", WARNING)


@on["postgresql"]
def test_a_transaction_that_keeps_no_row_is_not_warned_of(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_LONG_OPEN", timedelta(0))
    with open_elsewhere(house, "SELECT 1"):
        judged(house, "store.transactions", OK, "no transaction keeps old versions of rows remedy")


@on["postgresql"]
def test_a_role_that_sees_its_own_transactions_alone_is_told_so(house: House) -> None:
    house.sql(f"CREATE ROLE {CLERK}")
    try:
        house.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {CLERK}")
        limited = f"{house.url}&options=-crole%3D{CLERK}"
        missing = "pg_read_all_stats is missing"
        judged(house, "store.transactions", OK, missing, database_url=limited)
    finally:
        house.sql(f"DROP OWNED BY {CLERK}")
        house.sql(f"DROP ROLE {CLERK}")
    assert "missing" not in judged(house, "store.transactions", OK).found


@on["mariadb"]
def test_a_user_that_sees_no_transaction_is_told_so(house: House, mariadb: MariaDBServer) -> None:
    url = make_url(house.url)
    clerk = f"'{CLERK}'@'%'"
    mariadb.execute(
        f"CREATE OR REPLACE USER {clerk}", f"GRANT ALL ON `{url.database}`.* TO {clerk}"
    )
    try:
        limited = url.set(username=CLERK).render_as_string()
        judged(house, "store.transactions", OK, "PROCESS is missing", database_url=limited)
    finally:
        mariadb.execute(f"DROP USER {clerk}")


@on["postgresql"]
def test_rows_that_no_vacuum_removes_are_warned_of(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "_USUALLY_DEAD", 0)
    message = house.submit(send_in=HOUR)
    for number in range(3):
        house.change([message], last_error=str(number))
    # The server counts a moment later.
    wait_until(lambda: finding_of(house, "store.dead_rows").level is WARNING)

    def is_removed() -> bool:
        house.sql("VACUUM dispatcher_messages, dispatcher_attempts")
        return finding_of(house, "store.dead_rows").level is OK

    wait_until(is_removed)


def test_a_slot_without_a_consumer_is_warned_of() -> None:
    with PostgresServer(wal_level="replica") as server:
        url = server.url(server.migrated(migrate_at))
        with closing(Database(url)) as database:
            doctor: Any = SimpleNamespace(housekeeping=StoreSurvey(database).housekeeping)
            assert checks.store_replication(doctor).found == "no replication slot"
            server.execute("SELECT pg_create_physical_replication_slot('gone', true)")
            finding = checks.store_replication(doctor)
    assert finding.level is WARNING
    assert "gone (not in use, " in finding.found


def migrate_at(url: str) -> None:
    with closing(Database(url)) as database:
        migrate(database)


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        (Housekeeping(9 * MINUTE, ()), set()),
        (Housekeeping(11 * MINUTE, ()), {"store.transactions"}),
        (Housekeeping(None, ()), set()),
        (Housekeeping(None, (Backlog("messages", 10, 10),)), set()),
        (Housekeeping(None, (Backlog("a", 0, 10), Backlog("b", 11, 10))), {"store.dead_rows"}),
        (Housekeeping(None, (), (Slot("a", True, 2**20, 1_000),)), set()),
        (Housekeeping(None, (), (Slot("a", True, 2**31, 0),)), {"store.replication"}),
        (Housekeeping(None, (), (Slot("a", True, 0, 2_000_000),)), {"store.replication"}),
        (Housekeeping(None, (), (Slot("a", False, 0, 0),)), {"store.replication"}),
        (Housekeeping(None, (), days=Days(1, False)), set()),
        (Housekeeping(None, (), days=Days(0, False)), {"store.partitions"}),
        (Housekeeping(None, (), days=Days(3, True)), {"store.partitions"}),
    ],
)
def test_only_what_lasts_too_long_is_warned_of(facts: Housekeeping, wrong: set[str]) -> None:
    names = ("store.transactions", "store.dead_rows", "store.replication", "store.partitions")
    doctor: Any = SimpleNamespace(housekeeping=lambda: facts)
    findings = {name: checks.CHECKS[name](doctor) for name in names}
    assert {name for name, finding in findings.items() if finding.level is not Level.OK} == wrong


def test_messages_that_should_be_deleted_and_are_not(house: House) -> None:
    message, young = house.submit(send_in=HOUR), house.submit("ben", send_in=HOUR)
    backend, retention = house.database.backend, house.settings.retention
    now = SystemClock().now()
    ended = now - retention - 3 * DAY
    house.change([young], status=Status.CANCELLED.value, finished_at=now - retention - 2 * HOUR)
    judged(house, "work.prune", OK)
    house.change([message], status=Status.SENT.value, finished_at=ended)
    whole = (SystemClock().now() - ended - backend.kept_for(retention)) // HOUR
    judged(house, "work.prune", WARNING, f"`prune` is {timedelta(hours=whole)}"[:-6])
    assert house.parts.sweep.prune() == 1
    judged(house, "work.prune", OK)


@on["sqlite"]
@pytest.mark.parametrize(("minutes", "level"), [(9, OK), (11, WARNING)])
def test_a_prune_that_is_not_done_any_more(house: House, minutes: int, level: Any) -> None:
    house.parts.signs.note(Kind.DUTY, {"prune": minutes * MINUTE})
    judged(house, "work.prune", level)
