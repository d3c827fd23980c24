"""Everything works through PgBouncer in transaction mode, and leaves its sessions as they were."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from urllib.parse import quote

import psycopg
import pytest

from dispatcher import Draft, Message, Status
from dispatcher.errors import StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate
from tests.support.doubles import at_once
from tests.support.examining import ERROR, OK, WARNING, judged
from tests.support.house import House, hour_ago, house_on
from tests.support.requiring import missing
from tests.support.servers import PostgresServer, RedisServer, Server

SESSIONS, THREADS, ROUNDS = 3, 4, 4
UNTOUCHED = ("0", "0", "0", "on", 0)


_CONFIGURATION = """
[databases]
* = host={upstream} user=postgres
[pgbouncer]
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
"""


class Pooler(Server):
    """PgBouncer with its defaults: few sessions for all clients of a database."""

    def __init__(self, postgres: PostgresServer) -> None:
        super().__init__("dispatcher-pooler-")
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        text = _CONFIGURATION.format(upstream=postgres.folder, folder=self.folder, size=SESSIONS)
        (self.folder / "pgbouncer.ini").write_text(text)

    @staticmethod
    def program() -> str:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            missing("pgbouncer", "PgBouncer is missing: apt-get install pgbouncer")
        return program

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder))}&port=6432"

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        command = [self.program(), str(self.folder / "pgbouncer.ini")]
        return subprocess.Popen(
            command, user=self._user, stdout=log, stderr=log, start_new_session=True
        )

    def _answers(self) -> bool:
        self._check_alive()
        try:
            psycopg.connect(self.url("postgres"), autocommit=True).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[Pooler]:
    """Give a pooler with fewer sessions than the house has connections."""
    with Pooler(postgres) as server:
        yield server


@pytest.fixture
def pooled(pooler: Pooler, postgres_name: str, own_redis: RedisServer) -> Iterator[House]:
    with house_on(own_redis, pooler.url(postgres_name), clock=hour_ago()) as built:
        yield built


def drafts(name: str, count: int, send_in: timedelta) -> list[Draft]:
    return [
        Draft(channel="memory", recipient=f"{name}-{n}", body={"text": "Hi"}, send_in=send_in)
        for n in range(count)
    ]


def left_behind(pooler: Pooler, database: str) -> set[tuple[object, ...]]:
    """Return what is set and prepared in each of the pooler's sessions."""
    lines = [psycopg.connect(pooler.url(database), prepare_threshold=None) for _ in range(SESSIONS)]
    try:  # each keeps its session, since its transaction stays open
        return {
            line.execute(
                "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), "
                "current_setting('idle_in_transaction_session_timeout'), "
                "current_setting('enable_seqscan'), (SELECT count(*) FROM pg_prepared_statements)"
            ).fetchone()
            or ()
            for line in lines
        }
    finally:
        for line in lines:
            line.close()


def test_use_cases_and_duties_share_sessions(pooled: House, pooler: Pooler) -> None:
    parts = pooled.parts

    def use(number: int) -> None:
        for turn in range(ROUNDS):
            name = f"{number}-{turn}"
            batch = pooled.dispatcher.submit_many(drafts(name, 3, timedelta(0)))
            single = pooled.submit(name, idempotency_key=name)
            pooled.dispatcher.cancel(pooled.submit(f"{name} never").id)
            moved = pooled.submit(f"{name} later", send_in=timedelta(hours=1))
            pooled.dispatcher.reschedule(moved.id, send_in=timedelta(0))
            assert all(isinstance(message, Message) for message in batch), batch
            ids = [message.id for message in batch if isinstance(message, Message)]
            assert pooled.deliver(single, moved, *ids) == 5
            parts.sweep.enqueue_due()
            parts.sweep.rescue()
            parts.reconciler.reconcile()
            parts.sweep.prune()

    failed = [failure for failure in at_once([partial(use, n) for n in range(THREADS)]) if failure]
    assert failed == []
    assert len(set(pooled.sent)) == len(pooled.sent) == THREADS * ROUNDS * 5
    assert pooled.dispatcher.list(status=Status.SENT, limit=1)
    database = pooled.database.url.database or ""
    assert left_behind(pooler, database) == {UNTOUCHED}


def test_a_whole_import_is_copied(pooled: House) -> None:
    stored = pooled.dispatcher.submit_many(drafts("ada", 1_000, timedelta(days=1)))
    assert sum(isinstance(answer, Message) for answer in stored) == 1_000


def test_migrations_take_turns_and_bounded_statements_end(
    pooler: Pooler, postgres: PostgresServer
) -> None:
    name = postgres.create_database()
    with (
        closing(Database(pooler.url(name), statement_seconds=1)) as bounded,
        closing(Database(postgres.url(name))) as direct,
    ):
        revisions = at_once([lambda: migrate(bounded), lambda: migrate(direct)])
        assert revisions == ["0003"] * 2
        with pytest.raises(StoreUnavailable) as ended:
            bounded.run(lambda line: line.exec_driver_sql("SELECT pg_sleep(20)"))
        assert ended.value.timed_out
        assert left_behind(pooler, name) == {UNTOUCHED}
    postgres.drop_database(name)


def test_the_doctor_names_the_pooler_and_the_timeouts_it_lacks(
    pooled: House, postgres: PostgresServer
) -> None:
    judged(pooled, "store.pooler", WARNING, "PgBouncer")
    refused = pooled.settings.database_url + "&options=-c%20work_mem%3D8MB"
    judged(pooled, "store.answers", ERROR, "refuses a parameter", database_url=refused)
    direct = postgres.url(pooled.database.url.database or "")
    judged(pooled, "store.pooler", OK, database_url=direct)
