"""Each part of a dispatcher has a host of its own; hosts are cut off, and clocks are wrong.

Two workers, a beat, PostgreSQL, a Redis Cluster and a RabbitMQ cluster live in network namespaces.
One worker's clock is three seconds ahead, the other's three behind. The ledger goes by a clock that
is right.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher.errors import OutcomeUnknown, StoreUnavailable
from dispatcher.times.send_time import to_ms
from tests.acceptance.conftest import show_logs_of_failure
from tests.support import wrong_clock
from tests.support.cluster import MASTERS, QUICK_MS, Cluster, three_masters
from tests.support.environment import CHANNEL, Environment, short_settings
from tests.support.ledger import began_ns
from tests.support.load import Load, flow
from tests.support.model import excesses
from tests.support.network import Host, network
from tests.support.rabbitmq import RabbitMQNode, cluster_on
from tests.support.requiring import missing
from tests.support.servers import PostgresServer
from tests.support.tables import migrate_at
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

AHEAD, BEHIND = 3, -3
"""By how many seconds the clocks of the workers are off."""
TENANTS = 12
COUNT, SECONDS = 8, 2
"""The quota of a tenant."""
DATABASE_SECONDS = 1.0
SHORT_SECONDS = 0.1
ROUNDS = 2


@dataclass(frozen=True)
class Hosts:
    """An environment under load, each part of it on a host of its own."""

    running: Environment
    load: Load
    workers: Sequence[Host]
    beat: Host
    database: Host
    redis: Cluster
    rabbitmq: Sequence[RabbitMQNode]

    @property
    def all(self) -> list[Host]:
        servers = [*self.redis.nodes, *self.rabbitmq]
        return [
            *self.workers,
            self.beat,
            self.database,
            *(server.host for server in servers if server.host is not None),
        ]

    def flow(self) -> None:
        flow(self.running, self.load)

    def check(self) -> None:
        failures = self.load.failures
        assert [error for error in failures if not isinstance(error, StoreUnavailable)] == []
        unknown = {error.message_id for error in failures if isinstance(error, OutcomeUnknown)}
        rows = self.running.rows()
        stored = [self.running.dispatcher.get(row.id) for row in rows if row.id in unknown]
        self.running.check([*self.load.accepted, *stored])
        of_tenant: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            of_tenant[row.scopes["tenant"]].append(to_ms(row.send_at))
        for times in of_tenant.values():
            assert [*excesses(times, [(COUNT, SECONDS * 1_000)])] == []


@pytest.fixture
def hosts(request: pytest.FixtureRequest, folder: Path) -> Iterator[Hosts]:
    """Give hosts on which all runs and messages flow. Or skip."""
    if wrong_clock.LIBRARY is None:
        missing("netns", "no libfaketime: install the package faketime")
    with network() as net, ExitStack() as stack:
        workers = [net.host("worker-1"), net.host("worker-2")]
        beat = net.host("beat")
        rabbitmq = stack.enter_context(cluster_on([net.host(f"rabbit-{n}") for n in (1, 2, 3)]))
        postgres = stack.enter_context(PostgresServer(host=net.host("postgres")))
        redis = stack.enter_context(
            three_masters(
                node_timeout_ms=QUICK_MS,
                min_replicas=1,
                hosts=[net.host(f"redis-{number}") for number in range(2 * MASTERS)],
            )
        )
        assert postgres.host is not None
        settings = short_settings(
            folder,
            database_url=postgres.url_of_host(postgres.migrated(migrate_at)),
            redis_url=redis.url,
            broker_url=";".join(node.url for node in rabbitmq),
            shards=64,
            scopes={"tenant": {"quotas": [f"{COUNT}/{SECONDS} second"]}},
            channels={CHANNEL: _ledger(folder)},
        )
        running = Environment(
            folder,
            settings,
            {
                "worker-1": _with_clock(
                    workers[0], AHEAD, "-m", wrong_clock.__name__, "worker", "--no-doctor"
                ),
                "worker-2": _with_clock(
                    workers[1], BEHIND, "-m", wrong_clock.__name__, "worker", "--no-doctor"
                ),
                "beat": beat.command(sys.executable, "-m", "dispatcher", "beat"),
            },
        )
        stack.callback(show_logs_of_failure, request.node, running)
        stack.enter_context(running)
        load = stack.enter_context(Load(settings, tenants=TENANTS))
        made = Hosts(running, load, workers, beat, postgres.host, redis, rabbitmq)
        made.flow()
        yield made


def test_hosts_cut_off_and_wrong_clocks_break_no_promise(hosts: Hosts) -> None:
    for host, seconds in zip(hosts.workers, (AHEAD, BEHIND), strict=True):
        assert_off_by(host, seconds)

    for worker in hosts.workers:
        with worker.cut():
            hosts.flow()  # by the other one
            worker_has_lost_its_claims()
        hosts.flow()

    master = hosts.redis.masters[0]
    slot = hosts.redis.ranges()[0][0]
    assert master.host is not None
    with master.host.cut():
        # Its replica takes no writes without a replica of its own.
        hosts.redis.wait_for_failover(slot, master)
    hosts.redis.wait_for_replicas()
    hosts.flow()

    hosts.database.cut_for(DATABASE_SECONDS)
    hosts.flow()

    with hosts.rabbitmq[0].at.cut():
        hosts.flow()
    hosts.flow()

    for _ in range(ROUNDS):
        for host in hosts.all:
            host.cut_for(SHORT_SECONDS)
    hosts.redis.wait_for_replicas()
    hosts.flow()

    hosts.load.stop()
    hosts.running.wait_until_ended()
    hosts.check()


def worker_has_lost_its_claims() -> None:
    until = time.monotonic() + 4
    wait_until(lambda: time.monotonic() > until)


def assert_off_by(host: Host, seconds: int) -> None:
    before = time.time_ns()
    command = _with_clock(host, seconds, "-c", "import time; print(time.time_ns())")
    there = int(subprocess.run(command, check=True, capture_output=True).stdout)
    assert before < there - seconds * 1_000_000_000 < time.time_ns()


def _with_clock(host: Host, seconds: int, *words: str) -> list[str]:
    return host.command(*wrong_clock.faked(seconds), sys.executable, *words)


def _ledger(folder: Path) -> dict[str, Any]:
    return {
        "transport": "tests.support.ledger:Ledger",
        "options": {"path": str(folder / "ledger"), "began_ns": began_ns()},
        "max_attempts": 20,
    }
