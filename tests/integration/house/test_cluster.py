"""The whole house on a Redis in cluster mode: no script and no command crosses slots."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Draft, Message, QuotaExceeded
from dispatcher.redis_keys import PermitKeys, ShardKeys
from tests.support.house import BODY, House, hour_ago, house_on
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1)
SETTINGS: dict[str, Any] = {
    "channels": {"memory": {"transport": "memory", "quotas": ["3/minute"]}},
    "scopes": {"tenant": {"quotas": ["100/day in Europe/Berlin"]}},
    "shards": 16,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis that is a cluster of its own and serves all 16384 slots."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1] % 40_000 + 10_000  # its bus listens 10,000 above
    options = ("--cluster-enabled", "yes", "--port", str(port), "--bind", "127.0.0.1")
    with RedisServer(*options) as server:
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
            wait_until(lambda: _serves(server), 20.0)
        yield server


def _serves(server: RedisServer) -> bool:
    with server.client() as client:
        return "cluster_state:ok" in str(client.execute_command("CLUSTER INFO")).replace(
            "': '", ":"
        )


@pytest.fixture
def house(cluster: RedisServer, redis_server: RedisServer, sqlite_url: str) -> Iterator[House]:
    """Give a house whose windows and permits lie in the cluster; its broker is another Redis."""
    with cluster.client() as client:
        client.flushall()
    broker = f"redis+socket://{redis_server.socket}?virtual_host=1"
    with house_on(cluster, sqlite_url, broker_url=broker, clock=hour_ago(), **SETTINGS) as built:
        yield built


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """Give the URL of a migrated SQLite database of the test's own."""
    path = tmp_path / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


def test_keys_that_a_script_touches_share_a_slot(cluster: RedisServer) -> None:
    with cluster.client() as client:
        for keys in (ShardKeys("house", 3), ShardKeys("house", 15)):
            names = [
                keys.pending, keys.epoch, keys.rebuild, keys.window("ada"), keys.twins("key"),
                keys.window("acme", "tenant"),
            ]  # fmt: skip
            assert len({client.execute_command("CLUSTER KEYSLOT", name) for name in names}) == 1
        permits = PermitKeys("house")
        names = [permits.epoch, permits.scope("ada"), permits.channel("sms")]
        assert len({client.execute_command("CLUSTER KEYSLOT", name) for name in names}) == 1


def test_submits_count_against_several_scopes(house: House) -> None:
    later = house.clock.now() + 2 * HOUR
    asked = {"send_at": later, "scopes": {"tenant": "acme"}}
    first = [house.submit(name, **asked) for name in ("ada", "ben", "cleo")]
    with pytest.raises(QuotaExceeded) as refused:
        house.submit("dora", **asked)
    assert refused.value.scope == "channel.memory"
    assert refused.value.next_slot == later + timedelta(minutes=1)
    shifted = house.submit("dora", on_conflict="shift", **asked)
    assert shifted.send_at == refused.value.next_slot
    house.dispatcher.cancel(first[0].id)
    house.submit("emil", idempotency_key="emil", **asked)
    assert house.submit("emil", idempotency_key="emil", **asked).recipient == "emil"


def test_a_message_moves(house: House) -> None:
    message = house.submit(send_in=2 * HOUR, scopes={"tenant": "acme"})
    moved = house.dispatcher.reschedule(message.id, send_in=3 * HOUR)
    assert house.members() == {message.id: pytest.approx(moved.send_at.timestamp() * 1_000)}


def test_many_are_submitted_and_delivered(house: House) -> None:
    drafts = [
        Draft(channel="memory", recipient=f"to {n}", body=BODY, send_in=n * timedelta(minutes=1))
        for n in range(40)
    ]
    results = [each for each in house.dispatcher.submit_many(drafts) if isinstance(each, Message)]
    assert len(results) == 40
    assert house.deliver(*results[:5]) == 5


def test_lost_windows_are_rebuilt(house: House) -> None:
    message = house.submit(send_in=2 * HOUR, scopes={"tenant": "acme"})
    before = house.all_members()
    house.redis.flushall()
    house.parts.sweep.reconcile(settle=timedelta(0))
    assert house.all_members() == before == {"ada": {message.id: before["ada"][message.id]}}


def test_another_number_of_shards_takes_every_epoch_back(
    house: House, cluster: RedisServer, sqlite_url: str
) -> None:
    message = house.submit(send_in=2 * HOUR)
    broker = house.settings.broker_url
    changed = SETTINGS | {"shards": 5}
    with house_on(
        cluster, sqlite_url, broker_url=broker, clock=hour_ago(), opened=False, **changed
    ) as other:
        other.parts.sweep.reconcile(settle=timedelta(0))
        assert set(other.members()) == {message.id}
        other.submit("ben", send_in=2 * HOUR)
