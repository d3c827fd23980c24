"""The database does not take the message: an error that says so, and no reservation stays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Draft, OutcomeUnknown, QuotaExceeded, StoreUnavailable
from dispatcher.celery import tasks
from tests.support.examples import a_third_of
from tests.support.house import FAR, House, house_on
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.proxy import FarDatabase
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import wait_until

SOON = FAR + timedelta(minutes=1)
WAYS: list[dict[str, Any]] = [{}, {"idempotency_key": "key"}, {"on_conflict": "shift"}]
SECRET = "see-you-at-nine"  # noqa: S105 - looked for where it must not be
# query_canceled (a statement timeout), lock_not_available, serialization_failure, deadlock,
# disk_full, insufficient_privilege, raise_exception, too_many_connections
REFUSALS = ["57014", "55P03", "40001", "40P01", "53100", "42501", "P0001", "53300"]
# deadlock, the table is full, SIGNAL
_SIGNALLED = "1644"
MARIADB_REFUSALS = ["1213", "1114", _SIGNALLED]

Through = Callable[..., House]


@pytest.fixture
def through(redis_server: RedisServer, far: FarDatabase) -> Iterator[Through]:
    """Give a maker of houses that reach their database through the proxy."""
    with ExitStack() as made:

        def make(**settings: Any) -> House:
            house = house_on(redis_server, far.direct, database_url=far.through, **settings)
            return made.enter_context(house)

        yield make
        far.proxy.pass_all()


def refuses_everything(house: House, *, says: str) -> None:
    """Check that each way of submitting is refused and leaves what was there before."""
    before = house.snapshot()
    for way in WAYS:
        with pytest.raises(StoreUnavailable, match=says) as caught:
            house.submit(send_at=SOON, body={"text": SECRET}, **way)
        assert type(caught.value) is StoreUnavailable
        assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert house.snapshot() == before


@on_sqlite
def test_a_submit_without_a_folder_for_its_database_is_refused(
    build: Build, tmp_path: Path
) -> None:
    house = build(database_url=f"sqlite:///{tmp_path}/missing/store.db", opened=False)
    build()  # opens the windows
    refuses_everything(house, says=f"there is no folder {tmp_path}/missing")


@pytest.mark.every_database
def test_the_database_is_down(through: Through, far: FarDatabase) -> None:
    house = through()
    house.parts.close()  # no connection is left from before
    far.proxy.refuse()
    refuses_everything(house, says="unavailable")
    far.proxy.pass_all()
    house.submit(send_at=SOON)
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_whoever_forgets_to_migrate_is_told_so_and_not_a_hundred_times_a_minute(
    build: Build,
    empty_database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    build()
    house = build(database_url=empty_database_url, opened=False)
    refuses_everything(house, says="out of date.*run `dispatcher migrate`")
    draft = Draft(channel="memory", recipient="ada", body={}, send_at=SOON)
    with pytest.raises(StoreUnavailable, match="run `dispatcher migrate`"):
        house.dispatcher.submit_many([draft])
    monkeypatch.setattr(tasks, "_apps", {})
    monkeypatch.setattr(tasks, "_told_at", {})
    monkeypatch.setattr(tasks, "settings_of", lambda _: house.settings)
    caplog.clear()
    failed = 0
    for duty in ("enqueue_due", "rescue", "reconcile"):
        try:
            tasks.duties[duty]()
        except StoreUnavailable:
            failed += 1
    tasks.here().close()
    assert failed > 1
    [told] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "run `dispatcher migrate`" in told


def refuse_inserts(house: House, code: str = "P0001", says: str = SECRET) -> None:
    """Let the database refuse each message with this code."""
    trigger = "CREATE TRIGGER refuse BEFORE INSERT ON dispatcher_messages "
    if house.url.startswith("sqlite"):
        house.sql(f"{trigger}BEGIN SELECT RAISE(ABORT, '{says}'); END")
    elif house.url.startswith("mysql"):
        number = code if code.isdigit() else _SIGNALLED
        house.sql(
            f"{trigger}FOR EACH ROW SIGNAL SQLSTATE '45000' "
            f"SET MESSAGE_TEXT = '{says}', MYSQL_ERRNO = {number}"
        )
    else:
        house.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$"
        )
        house.sql(f"{trigger}EXECUTE FUNCTION refuse()")


@pytest.mark.parametrize(
    ("database_url", "code"),
    [
        ("sqlite", "SQLITE_CONSTRAINT_TRIGGER"),
        *(("mariadb", code) for code in MARIADB_REFUSALS),
        *a_third_of([pytest.param("postgresql", code) for code in REFUSALS]),
    ],
    indirect=["database_url"],
)
def test_the_database_refuses_the_row(house: House, code: str) -> None:
    refuse_inserts(house, code, says="no" if code in MARIADB_REFUSALS[:2] else SECRET)
    refuses_everything(house, says=f"the database answered {code}")
    on = " ON dispatcher_messages" if house.url.startswith("postgresql") else ""
    house.sql(f"DROP TRIGGER refuse{on}")
    house.submit(send_at=SOON)
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize(
    ("database_url", "asked", "says"),
    [
        ("sqlite", "?mode=ro&uri=true", "SQLITE_READONLY: it takes no writes"),
        (
            "postgresql",
            "&options=-cdefault_transaction_read_only%3Don",
            "25006: it takes no writes",
        ),
        ("mariadb", "?init_command=SET SESSION TRANSACTION READ ONLY", "1792"),
    ],
    indirect=["database_url"],
)
def test_the_database_is_read_only(build: Build, database_url: str, asked: str, says: str) -> None:
    build()  # opens the windows
    url = database_url.replace("sqlite:///", "sqlite:///file:") + asked
    house = build(database_url=url, opened=False)
    refuses_everything(house, says=f"the database answered {says}")


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_reply_of_the_commit_returns_what_is_stored(
    through: Through, far: FarDatabase, way: dict[str, Any], lost: int
) -> None:
    house = through()
    table = b"idempotency_keys" if "idempotency_key" in way else b"messages"
    far.proxy.drop_reply(b"INSERT INTO dispatcher_" + table, times=lost)
    message = house.submit(send_at=SOON, **way)
    assert far.proxy.dropped == lost
    assert house.again(message) == message
    assert len(house.rows()) == 1
    assert house.reservations() == house.all_members()
    with pytest.raises(QuotaExceeded):
        house.submit(send_at=SOON)


@pytest.mark.every_database
def test_an_answer_that_never_comes_is_an_unknown_outcome_that_keeps_its_place(
    through: Through, far: FarDatabase
) -> None:
    house = through(settle=0.001, reconcile_grace=0.002)
    # PostgreSQL stores message and key by one statement; elsewhere a transaction has two.
    is_one = isinstance(far.server, PostgresServer)
    stores = b"INSERT INTO dispatcher_idempotency_keys" if is_one else b"COMMIT"
    far.proxy.drop_reply(stores, times=100)
    with pytest.raises(OutcomeUnknown) as caught:
        house.submit(send_at=SOON, idempotency_key="key")
    message_id = caught.value.message_id
    assert str(message_id) in str(caught.value)
    assert set(house.members()) == house.pending() == {message_id}
    far.proxy.pass_all()
    assert house.submit(send_at=SOON, idempotency_key="key").id == message_id
    wait_until(lambda: house.reconciled().pending() == set())
    assert house.reservations() == house.all_members()
