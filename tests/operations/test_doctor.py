"""``doctor`` on real servers, each fault made, found and mended; and what none can show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec
from uuid import UUID

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from sqlalchemy import Engine, event

from dispatcher.celery.install import install
from dispatcher.operations import checks
from dispatcher.operations.checks import Level, measure
from dispatcher.redis.keys import LooseKeys
from dispatcher.reservation.contents import RedisNode, RedisSurvey
from dispatcher.store import wishes
from dispatcher.store.database import Database
from dispatcher.store.engines.mariadb import MariaDBEngine
from dispatcher.store.engines.postgresql import PostgreSQLEngine
from dispatcher.store.engines.sqlite import SQLiteEngine
from dispatcher.store.migrate import Obstacle, SchemaStanding
from dispatcher.store.survey import StoreSurvey
from dispatcher.telemetry.liveness import Kind
from dispatcher.times.clock import SystemClock
from dispatcher.times.zones import database
from tests.support.clock import MovableClock
from tests.support.cluster import cluster_of_one
from tests.support.examining import (
    ERROR,
    OK,
    SKIPPED,
    WARNING,
    examined,
    finding_of,
    judged,
    levels,
    note_at_work,
    stops,
)
from tests.support.house import House, house_on, let_graces_pass
from tests.support.house_fixtures import Build, on_postgresql, on_sqlite
from tests.support.migrations import HEAD, NEXT, REVISIONS, become_next_version
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.zone_rules import change_rules

MINUTE, SECOND, MS = timedelta(minutes=1), timedelta(seconds=1), timedelta(milliseconds=1)
FSYNC_OFF = {"postgresql": {"store.durability": WARNING}, "mysql": {}, "sqlite": {}}
"""The PostgreSQL of the tests runs without fsync."""


@pytest.fixture
def house(build: Build) -> House:
    return build(clock=SystemClock())


@pytest.fixture
def lone(own_redis: RedisServer, sqlite_url: str) -> Iterator[House]:
    with house_on(own_redis, sqlite_url, clock=SystemClock()) as built:
        yield built


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_sound_deployment_is_ok_and_looking_changes_nothing(house: House) -> None:
    house.submit(send_in=MINUTE)
    note_at_work(house)
    before = house.snapshot()
    findings = examined(house, at_work=False)
    assert levels(findings) == FSYNC_OFF[house.database.url.get_backend_name()]
    assert len(findings) == 49
    assert stops(house) == set()
    assert house.snapshot() == before


def test_each_fault_of_redis_has_a_remedy_and_an_evicting_one_stops_the_worker(lone: House) -> None:
    lone.redis.config_set("maxmemory-policy", "allkeys-lru")
    lone.redis.config_set("appendonly", "no")
    findings = examined(lone)
    assert levels(findings) == {"redis.eviction": ERROR, "redis.persistence": WARNING}
    assert all(findings[name].remedy for name in levels(findings))
    assert "allkeys-lru" in findings["redis.eviction"].found
    assert "nothing is written" in findings["redis.persistence"].found
    assert stops(lone) == {"redis.eviction"}
    assert lone.redis.exists(lone.keys("ada").epoch), "looking closes nothing"
    used = int(lone.redis.info("memory")["used_memory"])
    lone.redis.config_set("maxmemory-policy", "noeviction")
    lone.redis.config_set("maxmemory", used // 2)
    lone.redis.config_set("save", "60 1")
    lone.redis.replicaof("127.0.0.1", "1")
    findings = examined(lone, at_work=False)
    assert "only snapshots" in findings["redis.persistence"].found
    assert "replica" in findings["redis.writes"].found
    assert "bookings are refused" in findings["redis.memory"].found


def test_a_cluster_that_does_not_serve_every_slot_stops_the_worker(lone: House) -> None:
    with cluster_of_one() as server, server.client() as client:
        judged(lone, "redis.cluster", OK, redis_url=server.url)
        client.execute_command("CLUSTER DELSLOTS", 1)
        wait_until(lambda: finding_of(lone, "redis.cluster", redis_url=server.url).stops_worker)


@on_sqlite
def test_parts_that_are_closed_stale_too_short_or_being_rebuilt(house: House) -> None:
    keys = house.parts.fence.keys
    house.redis.delete(keys[0].epoch)
    house.redis.hset(keys[1].epoch, "server", "another:server")
    house.redis.hset(keys[2].epoch, "reach:", 1)
    house.redis.delete(keys[3].epoch)
    house.redis.set(keys[3].rebuild, "somebody")
    states = "closed: shard 0, shard 1, shard 2; being rebuilt: shard 3. The windows are built"
    judged(house, "redis.complete", ERROR, states)
    house.redis.delete(keys[3].rebuild)
    house.open()
    judged(house, "redis.complete", OK, "all 8 parts of Redis are complete")


def test_a_redis_that_is_away_is_asked_once_and_one_error_and_stops_no_worker(
    lone: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone.server.stop()
    ask = create_autospec(RedisSurvey.servers, side_effect=RedisSurvey.servers)
    monkeypatch.setattr(RedisSurvey, "servers", ask)
    findings = examined(lone)
    ask.assert_called_once()
    away = f"Redis at {lone.server.socket} cannot be reached"
    assert findings["redis.answers"].found == away
    assert "`dispatcher up` runs one here" in (findings["redis.answers"].remedy or "")
    assert findings["clock.redis"].found == f"not examined: {away}"
    assert findings["broker.answers"].level is ERROR
    assert {name for name, finding in findings.items() if finding.level is SKIPPED} == {
        *(name for name in findings if name.startswith("redis.") and name != "redis.answers"),
        "broker.queues", "broker.separate", "clock.redis", "work.orphans", "work.processes",
        "work.zones",
    }  # fmt: skip
    assert findings["store.migrations"].level is OK
    assert stops(lone) == set()


def test_a_database_one_migration_behind_stops_the_worker(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(clock=SystemClock(), opened=False)
    become_next_version(tmp_path, monkeypatch)
    judged(house, "store.migrations", ERROR, f"at revision {HEAD}; missing: {NEXT}")
    judged(house, "work.overdue", SKIPPED)
    assert stops(house) == {"store.migrations"}


def test_a_database_without_tables_stops_the_worker(build: Build, empty_database_url: str) -> None:
    house = build(url=empty_database_url, clock=SystemClock(), opened=False)
    house.parts.database.backend.make()
    says = f"without tables; missing: {', '.join(REVISIONS)}"
    judged(house, "store.migrations", ERROR, says)
    judged(house, "store.indexes", SKIPPED)
    assert stops(house) == {"store.migrations"}


@on_sqlite
def test_a_database_that_a_process_opened_is_found_after_it_changed_its_folder(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(house.settings.database_url.removeprefix("sqlite:///"))
    monkeypatch.chdir(path.parent)
    for url in (f"sqlite:///{path.name}", f"sqlite:///file:{path}?uri=true"):
        with closing(Database(url)) as database:
            monkeypatch.chdir(tmp_path)
            assert StoreSurvey(database).now() is not None
            assert not StoreSurvey(database).lacks_file


@on_postgresql
def test_a_later_version_and_a_dropped_index_are_warned_of_and_a_missing_key_stops_the_worker(
    house: House,
) -> None:
    house.sql("UPDATE dispatcher_alembic_version SET version_num = '9999'")
    house.sql("DROP INDEX ix_dispatcher_messages_enqueue_at")
    judged(house, "store.migrations", WARNING, "at revision 9999")
    judged(house, "store.indexes", WARNING, "missing indexes: ix_dispatcher_messages_enqueue_at.")
    assert stops(house) == set()
    key = "pk_dispatcher_idempotency_keys"
    house.sql(f"ALTER TABLE dispatcher_idempotency_keys DROP CONSTRAINT {key}")
    judged(house, "store.indexes", ERROR, key)
    assert stops(house) == {"store.indexes"}


@on_sqlite
def test_a_missing_file_or_folder_of_sqlite_is_one_error(house: House, tmp_path: Path) -> None:
    missing = f"there is no file {tmp_path}/none.db remedy: run `dispatcher migrate`"
    url = f"sqlite:///{tmp_path}/none.db"
    assert judged(house, "store.answers", ERROR, missing, database_url=url).stops_worker
    findings = examined(house, database_url=f"sqlite:///{tmp_path}/no/such/folder/x.db")
    missing = f"there is no folder {tmp_path}/no/such/folder"
    assert findings["store.answers"].found == missing
    assert (findings["store.answers"].remedy or "").startswith("make it, or correct database_url")
    assert findings["clock.store"].found == f"not examined: {missing}"
    others = [name for name in findings if name.startswith("store.") and name != "store.answers"]
    assert levels(findings, "store") == dict.fromkeys(others, SKIPPED) | {"store.answers": ERROR}


def test_a_clock_an_hour_off_stops_the_worker(slow: House) -> None:
    findings = examined(slow)
    assert levels(findings, "clock") == {"clock.store": ERROR, "clock.redis": ERROR}
    assert "s or more ahead of this machine's" in findings["clock.store"].found
    assert stops(slow) == {"clock.store"}


@on_sqlite
def test_broker_and_windows_in_one_database(house: House) -> None:
    judged(house, "broker.separate", OK, "database 1 of the server")
    shared = f"redis+socket://{house.server.socket}?virtual_host=0"
    judged(house, "broker.separate", WARNING, broker_url=shared)


@on_sqlite
def test_a_broker_that_is_away_is_an_error_without_its_password(house: House) -> None:
    findings = examined(house, broker_url="amqp://ada:hunter2@127.0.0.1:1//")
    assert levels(findings) == {
        "broker.answers": ERROR, "broker.queues": SKIPPED, "broker.separate": SKIPPED,
    }  # fmt: skip
    assert "hunter2" not in str(findings)


@on_sqlite
@pytest.mark.parametrize(("there", "asked"), [("classic", "quorum"), ("quorum", "classic")])
def test_a_queue_of_another_type_stops_the_worker(
    house: House, rabbitmq: str, own_queue: str, there: str, asked: str
) -> None:
    """It would be refused each time, and connect again and again."""
    with_broker: dict[str, Any] = {"broker_url": rabbitmq, "queue": own_queue}
    for queue_type in (asked, there):
        judged(house, "broker.queues", OK, queue_type=queue_type, **with_broker)  # it makes none
    arguments = {"x-queue-type": there} if there == "quorum" else None
    with Connection(rabbitmq) as connection:
        Queue(f"{own_queue}.memory", Exchange(f"{own_queue}.memory"),
              queue_arguments=arguments)(connection.channel()).queue_declare()  # fmt: skip
    judged(house, "broker.queues", OK, queue_type=there, **with_broker)
    says = (f"{own_queue}.memory", f"set queue_type = {there!r}")
    judged(house, "broker.queues", ERROR, *says, queue_type=asked, **with_broker)
    assert stops(house, queue_type=asked, **with_broker) == {"broker.queues"}


@on_sqlite
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"task_serializer": "json"}, {}),
        ({"accept_content": ["json", "pickle"]}, {"app.serializer": ERROR}),
        ({"task_serializer": "pickle"}, {"app.serializer": ERROR}),
        *(({"broker_transport_options": {"visibility_timeout": seconds}}, wrong)
          for seconds, wrong in ((60, {"app.redelivery": ERROR}), (61, {}))),
        ({"broker_transport_options": {"global_keyprefix": "shop:"}}, {"app.attached": ERROR}),
        ({"task_routes": []}, {"app.attached": ERROR}),
        ({"beat_schedule": {}}, {"app.attached": ERROR}),
        ({"broker_url": "memory://"}, {"app.attached": ERROR}),
        (
            {"broker_url": "nothing://"},
            {"app.answers": ERROR, "app.serializer": SKIPPED, "app.redelivery": SKIPPED,
             "app.attached": SKIPPED},
        ),
    ],
)  # fmt: skip
def test_a_celery_app_of_the_users(
    house: House, options: dict[str, Any], wrong: dict[str, Level]
) -> None:
    app = Celery("shop", broker=house.settings.broker_url, set_as_current=False)
    install(app, house.settings)
    app.conf.update(options)
    assert levels(examined(house, app=app), "app") == wrong


@on_sqlite
def test_a_long_horizon_on_rabbitmq(house: House) -> None:
    url = "amqp://127.0.0.1:1//"
    judged(house, "app.redelivery", WARNING, horizon=timedelta(hours=1), broker_url=url)


@pytest.mark.parametrize(
    ("rows", "wrong", "said"),
    [
        (
            [
                {"enqueue_at": -late, "next_attempt_at": -late}
                for late in (10 * MINUTE, MINUTE, SECOND)
            ],
            {"work.sweep": WARNING, "work.overdue": WARNING},
            r"2 messages wait for the sweep, the first one for 0:1\d:\d\d",
        ),
        (
            [{"enqueue_at": 4 * SECOND, "next_attempt_at": -late} for late in (MINUTE, 3 * SECOND)],
            {"work.overdue": WARNING},
            "1 message waits to be claimed though due",
        ),
        (  # put back by a limit, or for a destination that is silent
            [
                {"enqueue_at": 4 * MINUTE, "next_attempt_at": 5 * MINUTE, "send_at": -late * MINUTE}
                for late in (180, 50)
            ],
            {"work.waiting": WARNING},
            r"1 message waits more than an hour after the send time, the first one for 3:0\d:\d\d",
        ),
        (
            [
                {"status": "sending", "claimed_by": UUID(int=1), "claim_expires_at": after}
                for after in (MINUTE, -MINUTE)
            ],
            {"work.claims": WARNING},
            "1 message waits with an expired claim",
        ),
        ([{"channel": "fax"}], {"work.channels": WARNING}, r".* unknown channels: fax \(1\)"),
    ],
    ids=["not enqueued", "not claimed", "put back", "not rescued", "of no channel"],
)
def test_work_that_is_late_is_named_with_its_age(
    house: House, rows: list[dict[str, Any]], wrong: dict[str, Any], said: str
) -> None:
    now = house.database_time()
    for number, row in enumerate(rows):
        message = house.submit(f"r{number}", send_in=MINUTE)
        instants = {name: now + at for name, at in row.items() if isinstance(at, timedelta)}
        house.change([message], **row | instants)
    findings = examined(house)
    assert levels(findings, "work.") == wrong
    assert re.match(said, findings[next(iter(wrong))].found)


def test_it_is_said_that_due_messages_may_be_paused(house: House) -> None:
    house.dispatcher.pause("channel", "memory")
    assert "pause" not in judged(house, "work.overdue", OK).found, "nothing is late"
    message = house.submit("ada", send_in=MINUTE)
    at = house.database_time() - 10 * MINUTE
    house.change([message], enqueue_at=at, next_attempt_at=at)
    for check in ("work.sweep", "work.overdue"):
        judged(house, check, WARNING, "; 1 pause is in force: paused messages count, too")
    house.dispatcher.resume("channel", "memory")
    assert "pause" not in judged(house, "work.overdue", WARNING).found


@on_sqlite
def test_reservations_that_nobody_settles(house: House) -> None:
    message = house.submit(send_in=MINUTE)
    keys = house.keys("ada")
    entry = message.id.bytes + keys.window("ada").encode()
    house.redis.zincrby(keys.pending, -10_000, entry)
    judged(house, "work.orphans", OK)
    let_graces_pass(house)
    judged(house, "work.orphans", WARNING, "reconcile_grace: 1 reservation, which")


@pytest.mark.every_database
def test_a_status_url_that_nobody_tells(house: House) -> None:
    ended = [house.submit(name) for name in ("ada", "ben")]
    held, young = house.submit("cyd"), house.submit("dora", send_in=MINUTE)
    url = {"status_url": "https://shop.example/status", "notified_status": "scheduled"}
    now = house.database_time()
    gone = {"status": "sent", "finished_at": now - 10 * MINUTE}
    house.change(ended, **gone, **url)
    house.change([held], status="held", next_attempt_at=now - MINUTE, **url)
    house.change([young], **url)
    late = "3 messages wait for a status webhook, the first one for 0:10:0"
    told = ("there is no status_channel", "set status_channel")
    judged(house, "work.notifications", WARNING, late, *told)
    why = "the duty `notify` does not run"
    judged(house, "work.notifications", WARNING, late, why, status_channel="status")
    house.change(ended, notified_status="sent")
    house.change([held], notified_status="held")
    judged(house, "work.notifications", OK)
    house.change([young], status="sent", finished_at=house.database_time(), **url)
    judged(house, "work.notifications", OK, status_channel="status")
    judged(house, "work.notifications", WARNING)  # nobody will tell it


def test_a_database_that_takes_no_rows_is_an_error(lone: House) -> None:
    pages = lone.parts.database.run(
        lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    )
    before = lone.snapshot()

    def full(connection: Any, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", full)
    try:
        says = "SQLITE_FULL: no space is left. Every submit fails"
        judged(lone, "store.writes", ERROR, says)
    finally:
        event.remove(Engine, "connect", full)
    judged(lone, "store.writes", OK)
    assert lone.snapshot().messages == before.messages


@on_sqlite
def test_a_missing_worker_is_a_warning_and_an_error_with_overdue_messages(house: House) -> None:
    message = house.submit(send_in=MINUTE)
    house.redis.delete(*(LooseKeys("house").signs(kind) for kind in Kind))

    def is_told(level: Level, says: str = "") -> None:
        judged(house, "work.processes", level, says, at_work=False)

    is_told(WARNING, "no worker and no beat is alive: due messages are not sent")
    long_ago = house.database_time() - MINUTE
    house.change([message], next_attempt_at=long_ago, enqueue_at=long_ago)
    is_told(ERROR)
    house.parts.signs.note(Kind.WORKER, {"somebody": 0 * SECOND})
    is_told(ERROR, "no beat is alive, and 1 message waits")
    house.parts.signs.note(Kind.BEAT, {"somebody": 0 * SECOND})
    is_told(OK)


@on_sqlite
def test_a_process_with_another_tz_database_is_warned_of(house: House) -> None:
    own = database().version
    for version, age, level in (
        (own, 0 * SECOND, OK),
        ("1999a", MINUTE, OK),  # of a process that has ended
        ("1999a", 0 * SECOND, WARNING),
    ):
        house.parts.signs.note(Kind.ZONES, {version: age})
        judged(house, "work.zones", level, f"times go by the tz database {own} of ")
    judged(house, "work.zones", WARNING, "a worker or a beat goes by 1999a")


def test_files_that_other_users_may_read_are_warned_of(lone: House, tmp_path: Path) -> None:
    judged(lone, "settings.files", OK)  # no other user may enter the folder
    with TemporaryDirectory(dir="/tmp") as folder:
        for mode, level, says in ((0o755, WARNING, folder), (0o700, OK, "")):
            Path(folder).chmod(mode)
            judged(lone, "settings.files", level, says, data_dir=Path(folder))


SOUND = {"redis_version": "8.10.1", "maxmemory_policy": "noeviction", "aof_enabled": 1}
STOPS = "stops the worker"
"""An error with which a worker does not start."""


def node(name: str = "", more: dict[str, Any] | None = None, **info: Any) -> RedisNode:
    return RedisNode(name, SOUND | info, **(more or {}))


def in_cluster(nodes: int, *, all_nodes_asked: bool) -> dict[str, Any]:
    answer = {"cluster_state": "ok", "cluster_size": str(nodes)}
    return {"more": {"cluster": answer, "all_nodes_asked": all_nodes_asked}}


@pytest.mark.parametrize(
    ("judge", "facts", "result"),
    [
        *((checks.redis_version, {"redis_version": version}, result) for version, result in (
            ("6.2.0", OK), ("8.10.1", OK), (10.0, OK), ("6.0.16", STOPS), (5, STOPS),
            ("", STOPS),
        )),
        *((checks.redis_vulnerabilities, {"redis_version": version}, result)
          for version, result in (
            ("6.2.14", WARNING), ("6.2.20", OK), ("7.0.15", WARNING), ("7.4.5", WARNING),
            ("8.2.2", OK), ("8.10.1", OK), ("", WARNING),
        )),
        *((checks.redis_vulnerabilities,
           {"redis_version": "7.2.4", "valkey_version": version}, result)
          for version, result in (("8.1.3", WARNING), ("8.1.4", OK), ("9.0.0", OK))),
        (checks.redis_vulnerabilities,
         {"redis_version": "6.2.14", "more": {"is_private": True}}, OK),
        (checks.redis_writes, {"aof_last_write_status": "err"}, ERROR),
        (checks.redis_writes, {"role": "slave"}, ERROR),
        *((checks.redis_memory, {"used_memory": used, "maxmemory": 100}, result)
          for used, result in ((79, OK), (80, WARNING), (99, WARNING), (100, ERROR))),
        (checks.redis_persistence, {"aof_enabled": 0}, WARNING),
        (checks.redis_replicas, {"connected_slaves": 1}, WARNING),
        (checks.redis_replicas, {"connected_slaves": 1, "min_slaves_good_slaves": 1}, OK),
        *((checks.redis_cluster, in_cluster(nodes, all_nodes_asked=True), OK)
          for nodes in (0, 2, 3)),
        *((checks.redis_cluster, in_cluster(nodes, all_nodes_asked=False), STOPS)
          for nodes in (0, 2, 3)),
    ],
)  # fmt: skip
def test_a_server_is_judged_by_its_facts(
    judge: checks.Check, facts: dict[str, Any], result: Level | str
) -> None:
    nodes = [node("a:1"), node("b:2", **facts)]
    doctor: Any = SimpleNamespace(redis_nodes=lambda: nodes)
    finding = judge(doctor)
    level = ERROR if result is STOPS else result
    assert (finding.level, finding.stops_worker) == (level, result is STOPS)
    assert finding.found.startswith("b:2: ") is (level is not OK), "the worst server is named"


def test_tables_of_another_program_stop_the_worker() -> None:
    obstacle = Obstacle("it has dispatcher_messages", "set another table_prefix")
    standing = SchemaStanding(None, "0001", ("0001",), is_known=True, obstacle=obstacle)
    doctor: Any = SimpleNamespace(schema=lambda: standing)
    finding = checks.store_migrations(doctor)
    assert (finding.level, finding.stops_worker) == (ERROR, True)
    assert finding.found == "the database cannot be migrated: it has dispatcher_messages"
    assert finding.remedy == "set another table_prefix"


@pytest.mark.parametrize(
    ("durable", "settings", "level"),
    [
        (PostgreSQLEngine.durable, {"fsync": "on", "synchronous_commit": "on"}, OK),
        (PostgreSQLEngine.durable, {"fsync": "off", "synchronous_commit": "on"}, WARNING),
        (PostgreSQLEngine.durable, {"fsync": "on", "synchronous_commit": "off"}, WARNING),
        (SQLiteEngine.durable, {"journal_mode": "wal", "synchronous": "2"}, OK),
        (SQLiteEngine.durable, {"journal_mode": "delete", "synchronous": "2"}, WARNING),
        *((MariaDBEngine.durable, {"innodb_flush_log_at_trx_commit": value}, level)
          for value, level in (("1", OK), ("2", WARNING), ("0", WARNING))),
    ],
)  # fmt: skip
def test_a_database_that_acknowledges_too_early_is_warned_of(
    durable: Any, settings: dict[str, str], level: Level
) -> None:
    durability = durable._replace(values=settings)
    store = SimpleNamespace(durability=lambda: durability)
    doctor: Any = SimpleNamespace(store=store, schema=lambda: None)
    assert checks.store_durability(doctor).level is level


class Line:
    """A clock at the other end of a line on which questions and answers take their time."""

    def __init__(self, offset: timedelta, there: timedelta, back: timedelta) -> None:
        self.clock = MovableClock()
        self._offset, self._there, self._back = offset, there, back

    def ask(self) -> datetime:
        self.clock.advance(self._there)
        told = self.clock.now() + self._offset
        self.clock.advance(self._back)
        self._there, self._back = 3 * self._there, 2 * self._back  # the first look is the quickest
        return told


@pytest.mark.parametrize("offset", [-5 * SECOND, -MS, 0 * MS, 900 * MS, 3600 * SECOND])
@pytest.mark.parametrize(("there", "back"), [(0, 0), (300, 5), (5, 300), (2_000, 2_000)])
def test_the_true_offset_lies_within_the_bounds(offset: timedelta, there: int, back: int) -> None:
    line = Line(offset, there * MS, back * MS)
    least, most = measure(line.ask, line.clock)
    assert least <= offset <= most
    assert most - least <= (there + back + 2) * MS


@pytest.mark.parametrize(
    ("least", "most", "level"),
    [
        (-10, 10, OK),
        (400, 420, OK),
        (510, 520, WARNING),
        (-520, -510, WARNING),
        (-100, 1_500, WARNING),  # a slow line, perhaps
        (1_001, 1_500, ERROR),
        (-9_000, -1_001, ERROR),
    ],
)
def test_clocks_are_judged_by_what_is_certain(least: int, most: int, level: Level) -> None:
    finding = checks.judge_clock("x", least * MS, most * MS, stops_worker=True)
    assert (finding.level, finding.stops_worker) == (level, level is ERROR)


@on_sqlite
def test_messages_that_new_rules_of_their_zone_make_wrong_are_counted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the next ones alone, however many are booked."""
    monkeypatch.setattr(wishes, "_EXAMINED", 3)
    for number in range(1, 6):
        house.submit(f"r{number}", send_at=f"2028-07-0{number}T09:00", zone="Europe/Berlin")
    judged(house, "zones.wishes", OK)
    change_rules(monkeypatch, {"Europe/Berlin": "Africa/Lagos"})
    judged(house, "zones.wishes", WARNING, "3 messages of the next", "`dispatcher zones repair`")
    change_rules(monkeypatch, {"Europe/Berlin": None})
    judged(house, "zones.wishes", WARNING, "no zone Europe/Berlin", "tzdata")
