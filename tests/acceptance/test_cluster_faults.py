"""Masters die and freeze, while submits and sends go on.

After each fault SQL is judged by the definition of a quota, and the windows are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Dispatcher, Message, Settings
from dispatcher.errors import QuotaExceeded, ReservationsUnavailable
from dispatcher.quota import Quota
from dispatcher.redis.keys import ShardKeys, scope_of, shard_of
from dispatcher.times.clock import SystemClock
from tests.support.cluster import QUICK_MS, Cluster, slot_of, three_masters
from tests.support.environment import CHANNEL, Environment, Maker
from tests.support.house import Gate, House, promised, windows_of
from tests.support.load import Load, flow
from tests.support.model import excesses
from tests.support.nodes import Node
from tests.support.sentinel import watched_pair
from tests.support.servers import RedisServer
from tests.support.waiting import DEADLINE, wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
]

SETTINGS: dict[str, Any] = {"scopes": {"tenant": {"quotas": ["8/2 second"]}}}
SHARDS = 64
LOADS, TENANTS = 3, 12
MOST_LATE = 8


@dataclass(frozen=True)
class Run:
    running: Environment
    loads: Sequence[Load]
    house: House

    @property
    def accepted(self) -> list[Message]:
        return [message for load in self.loads for message in load.accepted]

    @property
    def unavailable(self) -> int:
        return sum(load.unavailable() for load in self.loads)

    def flow(self) -> None:
        flow(self.running, *self.loads)

    def wait_for_refusal(self) -> None:
        before = self.unavailable
        wait_until(lambda: self.unavailable > before)

    def slots_on(self, cluster: Cluster, master: Node) -> list[int]:
        name = self.house.settings.namespace
        slots = (slot_of(ShardKeys(name, shard).epoch) for shard in range(SHARDS))
        return [slot for slot in slots if cluster.master_of(slot) is master]

    def judge(self, *more: Message) -> None:
        """End the load, and fail if a promise was broken or a window is not what SQL says."""
        for load in self.loads:
            load.stop()
        self.running.wait_until_ended()
        assert [error for load in self.loads for error in load.failures] == []
        self.running.check([*self.accepted, *more])
        wait_until(lambda: windows_of(self.house) == promised(self.house), every=0.1)
        for name, members in promised(self.house).items():
            kind, _ = scope_of(name.encode()) or ("", "")
            quotas = [
                (quota.count, quota.length_ms)
                for quota in self.house.settings.quotas_of[kind]
                if isinstance(quota, Quota)
            ]
            assert quotas
            assert [*excesses([*members.values()], quotas)] == []


@pytest.fixture
def run(
    environment: Maker, own_redis: RedisServer, database_url: str
) -> Iterator[Callable[..., Run]]:
    """Give a maker of an environment under load, on windows elsewhere; its broker is a server."""
    with ExitStack() as stack:

        def make(gate: Gate, **settings: Any) -> Run:
            running = environment(redis_url=gate.url, **SETTINGS, **settings)
            house = House(
                running.settings, SystemClock(), server=own_redis, url=database_url, gate=gate
            )
            stack.enter_context(house)
            loads = [
                stack.enter_context(Load(running.settings, tenants=TENANTS, seed=seed))
                for seed in range(LOADS)
            ]
            made = Run(running, loads, house)
            made.flow()
            return made

        yield make


def test_a_frozen_master_that_comes_back_breaks_no_promise(run: Callable[..., Run]) -> None:
    """Split brain: it takes itself for the master until it has read what the others say.

    Its replica takes no writes without a replica of its own, so no place is given away twice.
    """
    with three_masters(node_timeout_ms=QUICK_MS, min_replicas=1) as cluster:
        made = run(cluster, shards=SHARDS)
        master = cluster.masters[0]
        slots = made.slots_on(cluster, master)
        with ExitStack() as idle, ThreadPoolExecutor(MOST_LATE) as threads:
            clients = clients_of(made.house.settings, slots, idle)
            master.freeze()
            made.wait_for_refusal()
            cluster.wait_for_failover(slots[0], master)
            accepted = len(made.accepted)
            wait_until(lambda: len(made.accepted) > accepted + 20)  # on the other two masters
            late = [threads.submit(submit_late, *pair) for pair in clients.items()]
            master.thaw()
            cluster.wait_for_replicas()
            made.flow()
            made.judge(*filter(None, [answer.result(DEADLINE) for answer in late]))


def clients_of(settings: Settings, slots: Sequence[int], stack: ExitStack) -> dict[str, Dispatcher]:
    """Return connected clients that are idle, by recipients whose windows lie in these slots."""
    recipients = [
        name
        for name in map("late-{}".format, range(20 * SHARDS))
        if slot_of(ShardKeys(settings.namespace, shard_of(name, SHARDS)).epoch) in slots
    ][:MOST_LATE]
    clients = {name: stack.enter_context(Dispatcher(settings)) for name in recipients}
    for name, client in clients.items():
        client.next_slot(recipient=name, channel=CHANNEL)  # connects
    return clients


def submit_late(recipient: str, client: Dispatcher) -> Message | None:
    with suppress(QuotaExceeded, ReservationsUnavailable):
        return client.submit(
            channel=CHANNEL, recipient=recipient, body={}, send_in=timedelta(seconds=2)
        )
    return None


def test_sentinels_replace_a_killed_master(run: Callable[..., Run]) -> None:
    with watched_pair() as pair:
        made = run(pair)
        master = pair.master
        master.kill()
        made.wait_for_refusal()
        pair.wait_for_failover(master)
        made.flow()
        pair.restart(master)
        pair.wait_for_replica()
        made.flow()
        made.judge()
