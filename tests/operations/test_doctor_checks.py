"""What checks say of facts that no test server can be brought to show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.operations import checks
from dispatcher.operations.checks import Offset, measure
from dispatcher.operations.findings import Finding, Level
from dispatcher.reservation import RedisNode
from dispatcher.store.engines.mariadb import MariaDBEngine
from dispatcher.store.engines.postgresql import PostgreSQLEngine
from dispatcher.store.engines.sqlite import SQLiteEngine
from dispatcher.store.migrate import Obstacle, SchemaStanding
from tests.support.clock import MovableClock

SOUND = {"redis_version": "8.10.1", "maxmemory_policy": "noeviction", "aof_enabled": 1}
SECOND, MS = timedelta(seconds=1), timedelta(milliseconds=1)


OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR
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
    judge: Callable[[RedisNode], Finding], facts: dict[str, Any], result: Level | str
) -> None:
    found = checks.worst(judge, [node("a:1"), node("b:2", **facts)])
    level = ERROR if result is STOPS else result
    assert (found.level, found.stops_worker) == (level, result is STOPS)
    assert found.found.startswith("b:2: ") is (level is not OK), "the worst server is named"


def test_tables_of_another_program_stop_the_worker() -> None:
    obstacle = Obstacle("it has dispatcher_messages", "set another table_prefix")
    standing = SchemaStanding(None, "0001", ("0001",), is_known=True, obstacle=obstacle)
    found = checks.store_migrations(standing)
    assert (found.level, found.stops_worker) == (ERROR, True)
    assert found.found == "the database cannot be migrated: it has dispatcher_messages"
    assert found.remedy == "set another table_prefix"


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
    durability = durable._replace(found=settings)
    doctor: Any = SimpleNamespace(store=SimpleNamespace(durability=lambda: durability))
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
        return told


@pytest.mark.parametrize("offset", [-5 * SECOND, -MS, 0 * MS, 900 * MS, 3600 * SECOND])
@pytest.mark.parametrize(("there", "back"), [(0, 0), (300, 5), (5, 300), (2_000, 2_000)])
def test_the_true_offset_lies_within_the_bounds(offset: timedelta, there: int, back: int) -> None:
    line = Line(offset, there * MS, back * MS)
    found = measure(line.ask, line.clock)
    assert found.least <= offset <= found.most
    assert found.most - found.least <= (there + back + 2) * MS


def test_a_clock_that_is_set_while_it_is_measured_gives_the_narrowest_look() -> None:
    line = Line(0 * MS, 10 * MS, 10 * MS)
    asked = 0

    def ask() -> datetime:
        nonlocal asked
        asked += 1
        if asked == 2:
            line._offset = 5 * SECOND
        return line.ask()

    found = measure(ask, line.clock)
    assert found.most - found.least == 22 * MS


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
    found = checks.clock_of("x", Offset(least * MS, most * MS), stops_worker=True)
    assert (found.level, found.stops_worker) == (level, level is ERROR)
