"""The whole house on a Redis in cluster mode: no script and no command crosses slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Draft, Message, QuotaExceeded, Status
from dispatcher.redis.keys import PermitKeys, ShardKeys, shard_of
from tests.support.all_windows import let_graces_pass, promised, windows_of
from tests.support.callers import callers_engine
from tests.support.cluster import cluster_of_one
from tests.support.house import BODY, House, hour_ago, house_on
from tests.support.servers import RedisServer

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SETTINGS: dict[str, Any] = {
    "channels": {
        "memory": {
            "transport": "memory",
            "quotas": ["3/minute"],
            "recipient_quotas": ["9/hour"],
            "limits": ["100/minute"],
        }
    },
    "scopes": {"tenant": {"quotas": ["100/day in Europe/Berlin"]}},
    "shards": 16,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """One Redis that is a cluster of its own and serves all 16384 slots."""
    with cluster_of_one() as (server, _):
        yield server


@pytest.fixture
def house(cluster: RedisServer, redis_server: RedisServer, sqlite_url: str) -> Iterator[House]:
    """Give a house whose windows and permits lie in the cluster; its broker is another Redis."""
    with cluster.client() as client:
        client.flushall()
        client.config_resetstat()
    broker = f"redis+socket://{redis_server.socket}?virtual_host=1"
    with house_on(cluster, sqlite_url, broker_url=broker, clock=hour_ago(), **SETTINGS) as built:
        yield built
        # Some errors of Redis are only logged, and the sweep makes them good.
        assert "errorstat_CROSSSLOT" not in built.redis.info("errorstats")


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
    house.parts.reconciler.reconcile(settle=timedelta(0))
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
        other.parts.reconciler.reconcile(settle=timedelta(0))
        assert set(other.members()) == {message.id}
        other.submit("ben", send_in=2 * HOUR)


ACME = {"tenant": "acme"}
"""Lies in another shard than the channel and than the people below."""
PEOPLE = ("ada", "ben", "cleo", "dora")


def drafts_of(many: int) -> list[Draft]:
    """Return drafts that contend for the places of channel and tenant."""
    return [
        Draft(
            channel="memory",
            recipient=PEOPLE[n % len(PEOPLE)],
            body=BODY,
            send_in=2 * HOUR,
            scopes=ACME,
            idempotency_key=f"key {n}",
            on_conflict="shift",
        )
        for n in range(many)
    ]


def verify(house: House, booked: Sequence[Message]) -> None:
    assert house.dispatcher.verify_windows().messages == len(booked)


def rebuild(house: House, booked: Sequence[Message]) -> None:
    assert len(house.dispatcher.rebuild_windows()) == house.settings.shards


def timeline(house: House, booked: Sequence[Message]) -> None:
    seen = house.dispatcher.timeline("ada", channel="memory", scopes=ACME)
    assert [len(each.booked) for each in seen.windows] == [3, 3, len(booked), len(booked)]
    [tenant] = house.dispatcher.timeline("acme", kind="tenant").windows
    assert len(tenant.booked) == len(booked)


def plan(house: House, booked: Sequence[Message]) -> None:
    assert house.dispatcher.plan(drafts_of(20)).known == len(booked)


def submit_many(house: House, booked: Sequence[Message]) -> None:
    drafts = drafts_of(20)
    for atomic in (False, True):
        results = house.dispatcher.submit_many(drafts, atomic=atomic)
        assert [each for each in results if isinstance(each, Message)] == [
            *house.dispatcher.select()
        ][::-1]


def next_slot(house: House, booked: Sequence[Message]) -> None:
    slot = house.dispatcher.next_slot(
        recipient="ada", channel="memory", scopes=ACME, after=booked[0].send_at
    )
    assert house.submit(send_at=slot, scopes=ACME).send_at == slot


def reschedule(house: House, booked: Sequence[Message]) -> None:
    after = booked[-1].send_at
    for each in booked[:4]:
        house.dispatcher.reschedule(each.id, send_at=after, on_conflict="shift")
    with pytest.raises(QuotaExceeded):
        house.dispatcher.reschedule(booked[4].id, send_at=after)


def cancel(house: House, booked: Sequence[Message]) -> None:
    for each in booked:
        house.dispatcher.cancel(each.id)
    assert windows_of(house) == {}


def in_a_transaction(house: House, booked: Sequence[Message]) -> None:
    with callers_engine(house.database) as engine:
        for ends in ("commit", "rollback"):
            with engine.connect() as connection:
                house.submit(
                    ends, send_in=9 * HOUR, scopes=ACME, idempotency_key=ends, session=connection
                )
                getattr(connection, ends)()
    assert len(house.rows()) == len(booked) + 1


def duties_of_the_sweep(house: House, booked: Sequence[Message]) -> None:
    """Enqueue, rescue, reconcile and prune, beside what makes work for each."""
    late, ended, lost, cancelled, *_ = booked
    past = house.database_time() - timedelta(days=40)
    house.change([late], enqueue_at=past)
    house.change([ended], status="expired", finished_at=past)
    house.change([lost], status="cancelled", finished_at=past)
    house.dispatcher.cancel(cancelled.id)
    [due] = [house.submit("due", send_in=timedelta(0))]
    house.parts.delivery.parts.claims.claim([due.id])
    house.end_claims(due)
    sweep = house.parts.sweep
    assert sweep.enqueue_due() == 1
    assert sweep.rescue() == 1
    assert house.parts.reconciler.reconcile().released >= 2
    assert sweep.prune() == 2


def deliver(house: House, booked: Sequence[Message]) -> None:
    now = [house.submit(name, send_in=timedelta(0), on_conflict="shift") for name in PEOPLE]
    late = house.submit(send_in=MINUTE)
    assert house.deliver(*now, late) == len(now)
    assert house.again(late).status is Status.SCHEDULED
    assert house.again(late).next_attempt_at > house.database_time()
    house.redis.delete(PermitKeys("house").epoch)
    house.parts.reconciler.reconcile(settle=timedelta(0))
    assert len(house.permits()) == 1


ACTIONS: Mapping[str, Callable[[House, Sequence[Message]], None]] = {
    each.__name__: each
    for each in (
        verify, rebuild, timeline, plan, submit_many, next_slot, reschedule, cancel,
        in_a_transaction, duties_of_the_sweep, deliver,
    )
}  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS)
def test_no_action_crosses_slots(house: House, action: str) -> None:
    shards = {shard_of(home, 16) for home in (*PEOPLE, "@channel.memory", "@tenant:acme")}
    assert len(shards) == 2 + len(PEOPLE)
    results = house.dispatcher.submit_many(drafts_of(10))
    booked = [each for each in results if isinstance(each, Message)]
    ACTIONS[action](house, booked)
    let_graces_pass(house)
    house.reconciled()
    assert windows_of(house) == promised(house)
    assert house.dispatcher.verify_windows().equal
