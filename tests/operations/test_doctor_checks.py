"""What checks say of facts that no test server can be brought to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from dispatcher.operations import server_checks
from dispatcher.operations.findings import Examination, Finding, Level
from dispatcher.operations.server_checks import Offset, StoreFacts, measure
from dispatcher.reservation import ClusterFacts, RedisFacts
from dispatcher.store import Durability, SchemaStanding
from dispatcher.store.engines.mariadb import MariaDBEngine
from dispatcher.store.engines.postgresql import PostgreSQLEngine
from dispatcher.store.migrate import Obstacle
from tests.support.clock import NOON, MovableClock

SOUND = RedisFacts(
    name="",
    version="7.2.4", valkey="", is_private=False, run_id="a", database=0, policy="noeviction",
    is_replica=False,
    failed_writes=(), has_log=True, has_snapshots=True, replicas=0, waits_for_replicas=False,
    used_bytes=1, most_bytes=0, cluster=None,
)  # fmt: skip
SECOND, MS = timedelta(seconds=1), timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("6.2.0", Level.OK),
        ("8.10.1", Level.OK),
        ("10.0", Level.OK),
        ("6.0.16", Level.ERROR),
        ("5", Level.ERROR),
        ("", Level.ERROR),
    ],
)
def test_old_servers_stop_the_worker(version: str, level: Level) -> None:
    found = server_checks.redis_version(replace(SOUND, version=version))
    assert (found.level, found.stops_worker) == (level, level is Level.ERROR)


@pytest.mark.parametrize(
    ("version", "valkey", "level"),
    [
        ("6.2.14", "", Level.WARNING),
        ("6.2.20", "", Level.OK),
        ("7.0.15", "", Level.WARNING),
        ("7.4.5", "", Level.WARNING),
        ("8.2.2", "", Level.OK),
        ("8.10.1", "", Level.OK),
        ("7.2.4", "8.1.3", Level.WARNING),
        ("7.2.4", "8.1.4", Level.OK),
        ("7.2.4", "9.0.0", Level.OK),
        ("", "", Level.WARNING),
    ],
)
def test_a_server_with_known_holes_is_warned_of_where_others_reach_it(
    version: str, valkey: str, level: Level
) -> None:
    facts = replace(SOUND, version=version, valkey=valkey)
    assert server_checks.redis_vulnerabilities(facts).level is level
    assert server_checks.redis_vulnerabilities(replace(facts, is_private=True)).level is Level.OK


@pytest.mark.parametrize(
    ("judge", "facts", "level", "says"),
    [
        (
            server_checks.redis_writes,
            {"failed_writes": ("log",)},
            Level.ERROR,
            "the last log could not be written",
        ),
        (
            server_checks.redis_persistence,
            {"has_log": False, "has_snapshots": None},
            Level.WARNING,
            "does not tell",
        ),
    ],
)
def test_what_a_server_cannot_keep_is_said(
    judge: Callable[[RedisFacts], Finding], facts: dict[str, Any], level: Level, says: str
) -> None:
    found = judge(replace(SOUND, **facts))
    assert (found.level, found.stops_worker) == (level, False)
    assert says in found.found


@pytest.mark.parametrize("nodes", [0, 2, 3])
@pytest.mark.parametrize("all_nodes_asked", [True, False])
def test_a_cluster_of_which_one_node_is_asked_stops_the_worker(
    nodes: int, all_nodes_asked: bool
) -> None:
    cluster = ClusterFacts(serves=True, nodes=nodes, all_nodes_asked=all_nodes_asked)
    assert server_checks.redis_cluster(replace(SOUND, cluster=cluster)).stops_worker is not (
        all_nodes_asked
    )


def test_the_worst_of_several_servers_is_found_and_named() -> None:
    servers = [replace(SOUND, name="a:1"), replace(SOUND, name="b:2", policy="allkeys-lru")]
    found = server_checks.worst(server_checks.redis_eviction, servers)
    assert (found.level, found.stops_worker) == (Level.ERROR, True)
    assert found.found.startswith("b:2: ")


def test_tables_of_another_program_stop_the_worker() -> None:
    obstacle = Obstacle("it has dispatcher_messages", "set another table_prefix")
    standing = SchemaStanding(None, "0001", ("0001",), is_known=True, obstacle=obstacle)
    found = server_checks.store_migrations(StoreFacts(standing, None, Durability({}, (), "")))
    assert (found.level, found.stops_worker) == (Level.ERROR, True)
    assert (found.found, found.remedy) == (
        "the database cannot be migrated: it has dispatcher_messages", "set another table_prefix",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("durable", "settings", "level"),
    [
        (PostgreSQLEngine.durable, {"fsync": "on", "synchronous_commit": "on"}, Level.OK),
        (PostgreSQLEngine.durable, {"fsync": "off", "synchronous_commit": "on"}, Level.WARNING),
        (PostgreSQLEngine.durable, {"fsync": "on", "synchronous_commit": "off"}, Level.WARNING),
        (MariaDBEngine.durable, {"innodb_flush_log_at_trx_commit": "1"}, Level.OK),
        (MariaDBEngine.durable, {"innodb_flush_log_at_trx_commit": "2"}, Level.WARNING),
        (MariaDBEngine.durable, {"innodb_flush_log_at_trx_commit": "0"}, Level.WARNING),
    ],
)
def test_a_database_that_acknowledges_too_early_is_warned_of(
    durable: Any, settings: dict[str, str], level: Level
) -> None:
    standing = SchemaStanding("0001", "0001", (), is_known=True)
    facts = StoreFacts(standing, (), durable.judge(settings))
    assert server_checks.store_durability(facts).level is level


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


def test_the_quickest_ways_bound_the_offset_together() -> None:
    line = Line(0 * MS, 800 * MS, 0 * MS)
    ways = iter([(800, 0), (0, 800), (800, 800), (800, 800)])

    def ask() -> datetime:
        there, back = next(ways)
        line._there, line._back = there * MS, back * MS
        return line.ask()

    assert measure(ask, line.clock).at_most <= 2 * MS


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
        (-10, 10, Level.OK),
        (400, 420, Level.OK),
        (510, 520, Level.WARNING),
        (-520, -510, Level.WARNING),
        (-100, 1_500, Level.WARNING),
        (1_001, 1_500, Level.ERROR),
        (-9_000, -1_001, Level.ERROR),
    ],
)
def test_clocks_are_judged_by_what_is_certain(least: int, most: int, level: Level) -> None:
    found = server_checks.clock_of("x", Offset(least * MS, most * MS), stops_worker=True)
    assert (found.level, found.stops_worker) == (level, level is Level.ERROR)


def test_a_slow_line_is_not_a_wrong_clock() -> None:
    line = Line(0 * MS, 3 * SECOND, 3 * SECOND)
    found = server_checks.clock_of("x", measure(line.ask, line.clock))
    assert found.level is Level.WARNING
    assert "took too long to tell" in found.found
    assert line.clock.now() > NOON


@pytest.mark.parametrize(
    ("levels", "worst"),
    [
        ([Level.OK], Level.OK),
        ([Level.SKIPPED, Level.OK], Level.OK),
        ([Level.WARNING, Level.OK], Level.WARNING),
        ([Level.OK, Level.ERROR, Level.WARNING], Level.ERROR),
    ],
)
def test_the_worst_finding_counts(levels: list[Level], worst: Level) -> None:
    examined = Examination(tuple(Finding(check="x", level=each, found="") for each in levels))
    assert examined.level is worst
    assert sum(examined.counts.values()) == len(levels)
    assert set(examined.counts) == set(Level)
