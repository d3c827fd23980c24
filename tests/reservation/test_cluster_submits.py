"""The whole house on a Redis in cluster mode: no script and no command crosses slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Draft, LimitersUnavailable, Message, QuotaExceeded, Status
from dispatcher.limiters.permits import Permit
from dispatcher.message import new_id
from dispatcher.operations.checks import Level
from dispatcher.redis.keys import shard_of
from tests.support.callers import callers_engine
from tests.support.cluster import CLUSTERS, Cluster, Member, three_masters
from tests.support.examining import examined, levels
from tests.support.house import (
    BODY,
    House,
    hour_ago,
    house_on,
    let_graces_pass,
    promised,
    windows_of,
)
from tests.support.servers import RedisServer

Action = Callable[[House, Sequence[Message]], None]
SHARDS = 64
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LIMIT = 100
SETTINGS: dict[str, Any] = {
    "channels": {
        "memory": {
            "transport": "memory",
            "quotas": ["3/minute"],
            "recipient_quotas": ["9/hour"],
            "limits": [f"{LIMIT}/minute"],
        }
    },
    "scopes": {"tenant": {"quotas": ["100/day in Europe/Berlin"]}},
    "shards": SHARDS,
}


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | Member]:
    """One Redis that is a cluster of its own, by the client of a server; or a real cluster."""
    with request.param() as found:
        yield found


@pytest.fixture
def house(cluster: Cluster | Member, redis_server: RedisServer, sqlite_url: str) -> Iterator[House]:
    """Give a house whose windows and permits lie in the cluster; its broker is another Redis."""
    with house_in(cluster, redis_server, sqlite_url) as built:
        yield built


@contextmanager
def house_in(cluster: Cluster | Member, broker: RedisServer, url: str) -> Iterator[House]:
    for node in cluster.nodes:
        node.command("CONFIG", "RESETSTAT")
        if node.is_master:
            node.command("FLUSHALL")
    with house_on(broker, url, gate=cluster, clock=hour_ago(), **SETTINGS) as built:
        yield built
    # Some errors of Redis are only logged, and the sweep makes them good.
    for node in cluster.nodes:
        assert "errorstat_CROSSSLOT" not in node.ask(lambda client: client.info("errorstats"))


def test_another_number_of_shards_takes_every_epoch_back(
    house: House, cluster: Cluster | Member, redis_server: RedisServer, sqlite_url: str
) -> None:
    message = house.submit(send_in=2 * HOUR)
    changed = SETTINGS | {"shards": SHARDS + 1}
    with house_on(
        redis_server, sqlite_url, gate=cluster, clock=hour_ago(), opened=False, **changed
    ) as other:
        other.parts.reconciler.reconcile(settle=timedelta(0))
        assert set(other.members()) == {message.id}
        other.submit("ben", send_in=2 * HOUR)


ACME = {"tenant": "acme"}
"""Lies in another shard than the channel and than the people below."""
PEOPLE = ("ada", "ben", "cleo", "dora")


def drafts_of(count: int) -> list[Draft]:
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
        for n in range(count)
    ]


def look(house: House, booked: Sequence[Message]) -> None:
    """What operators look at: verification, timeline, plan, doctor, status, ranking, metrics."""
    desk = house.dispatcher
    assert desk.verify_windows().messages == len(booked)
    seen = desk.timeline("ada", channel="memory", scopes=ACME)
    assert [len(window.booked) for window in seen.windows] == [3, 3, len(booked), len(booked)]
    [tenant] = desk.timeline("acme", kind="tenant").windows
    assert len(tenant.booked) == len(booked)
    assert desk.plan(drafts_of(20)).known == len(booked)
    findings = examined(house)
    # What it warns of is about these servers, and not about a cluster of them.
    assert levels(findings, "redis.").keys() <= {"redis.replicas", "redis.vulnerabilities"}
    assert findings["redis.cluster"].level is Level.OK
    assert findings["redis.complete"].found.endswith("parts of Redis are complete")
    status = desk.status()
    assert status.silence is None
    assert status.total(Status.SCHEDULED) == len(booked)
    assert [worker.name for worker in status.workers or ()] == ["somebody"]
    [top] = desk.top("channel").tops
    assert (top.messages, top.fullest and top.fullest.fill) == (len(booked), 1.0)
    vitals = {gauge.name: gauge.values for gauge in house.parts.overviews.vitals()}
    assert vitals["workers"] == {(): 1}


def rebuild_and_submit_many(house: House, booked: Sequence[Message]) -> None:
    desk, drafts = house.dispatcher, drafts_of(20)
    assert len(desk.rebuild_windows()) == house.settings.shards
    for atomic in (False, True):
        results = desk.submit_many(drafts, atomic=atomic)
        ids = [message.id for message in results if isinstance(message, Message)]
        assert len(ids) == len(drafts)
        assert sorted(ids, reverse=True) == [message.id for message in desk.select()]
    after = booked[0].send_at
    slot = desk.next_slot(recipient="ada", channel="memory", scopes=ACME, after=after)
    assert house.submit(send_at=slot, scopes=ACME).send_at == slot


def join_a_transaction_and_move(house: House, booked: Sequence[Message]) -> None:
    with callers_engine(house.database) as engine:
        for ends in ("commit", "rollback"):
            with engine.connect() as connection:
                house.submit(
                    ends, send_in=9 * HOUR, scopes=ACME, idempotency_key=ends, session=connection
                )
                getattr(connection, ends)()
    assert len(house.rows()) == len(booked) + 1
    after = booked[-1].send_at
    for message in booked[:4]:
        house.dispatcher.reschedule(message.id, send_at=after, on_conflict="shift")
    with pytest.raises(QuotaExceeded):
        house.dispatcher.reschedule(booked[4].id, send_at=after)


def refuse_and_cancel(house: House, booked: Sequence[Message]) -> None:
    """Refusals are noted beside the windows of several shards."""
    later = booked[0].send_at
    with pytest.raises(QuotaExceeded):
        house.submit("fay", send_at=later, scopes=ACME)
    draft = Draft(channel="memory", recipient="dan", body=BODY, send_at=later)
    house.dispatcher.submit_many([draft])
    refusals = house.dispatcher.refusals()
    assert [(rule.kind, rule.quota, rule.refused) for rule in refusals.rules] == [
        ("channel.memory", "3/minute", 2)
    ]
    assert len(refusals.last) == 2
    for message in booked:
        house.dispatcher.cancel(message.id)
    assert windows_of(house) == {}


def duties_of_the_sweep(house: House, booked: Sequence[Message]) -> None:
    """Enqueue, rescue, reconcile and prune, beside what makes work for each."""
    late, ended, lost, cancelled, *_ = booked
    past = house.database_time() - timedelta(days=40)
    house.change([late], enqueue_at=past)
    house.change([ended], status="expired", finished_at=past)
    house.change([lost], status="cancelled", finished_at=past)
    house.dispatcher.cancel(cancelled.id)
    [due] = [house.submit("due", send_in=timedelta(0))]
    house.parts.delivery.claims.claim([due.id])
    house.end_claims(due)
    sweep = house.parts.sweep
    assert sweep.enqueue_due() == 1
    assert sweep.rescue() == 1
    assert house.parts.reconciler.reconcile().released >= 2
    assert sweep.prune() == 2


def close_permits(house: House, *names: str) -> int:
    """Take back the epochs of the permit logs of scopes or channels; return how many they were."""
    return sum(house.redis.delete(keys.epoch) for keys in set(map(house.permit_keys, names)))


def deliver(house: House, booked: Sequence[Message]) -> None:
    now = [house.submit(name, send_in=timedelta(0), on_conflict="shift") for name in PEOPLE]
    late = house.submit(send_in=MINUTE)
    assert house.deliver(*now, late) == len(now)
    assert house.again(late).status is Status.SCHEDULED
    assert house.again(late).next_attempt_at > house.database_time()
    close_permits(house, "ada", "memory")
    house.parts.reconciler.reconcile(settle=timedelta(0))
    assert len(house.permits()) == 1


def permits(house: House, booked: Sequence[Message]) -> None:
    """Grant, refuse, close, give back and rebuild what lies in the shards of many scopes.

    That each is right, ``tests/limiters/test_permits.py`` says.
    """
    people = [f"person {n}" for n in range(2 * LIMIT)]
    taken = [Permit(new_id(), 1, name, "memory") for name in people]
    permits = house.parts.permits
    answers = permits.acquire(taken, within=MINUTE)
    assert [answer.allowed for answer in answers] == [True] * LIMIT + [False] * LIMIT
    permits.settle([(permit, timedelta(0)) for permit in taken[:9]])
    permits.give_back(taken[9:LIMIT])
    log = house.permit_keys("memory").channel("memory")
    assert len(permits.waiting(logs=9, messages=9)[log]) == 9
    permits.give_turns(log, [], set())
    permits.close("memory", MINUTE)
    [fill] = house.parts.overviews.fills.read()
    assert fill.limits[0].used == 9
    house.redis.delete(house.permit_keys("memory").closing("memory"))

    closed = close_permits(house, people[0], people[1], "memory")
    with pytest.raises(LimitersUnavailable):
        permits.acquire(taken, within=MINUTE)
    permits.give_back(taken)
    assert house.parts.reconciler.reconcile(settle=timedelta(0)).rebuilt == closed
    assert any(answer.allowed for answer in permits.acquire(taken, within=MINUTE))
    permits.give_back(taken)


@pytest.mark.parametrize(
    "action",
    [
        look,
        rebuild_and_submit_many,
        join_a_transaction_and_move,
        refuse_and_cancel,
        duties_of_the_sweep,
        deliver,
        permits,
    ],
)
def test_no_action_crosses_slots(house: House, action: Action) -> None:
    shards = {shard_of(home, SHARDS) for home in (*PEOPLE, "@channel.memory", "@tenant:acme")}
    assert len(shards) == 2 + len(PEOPLE)
    act(house, action)


def act(house: House, *actions: Action) -> None:
    """Book, act, let the sweep settle everything, and compare the windows with SQL."""
    results = house.dispatcher.submit_many(drafts_of(10))
    booked = [message for message in results if isinstance(message, Message)]
    assert len(booked) == 10
    for action in actions:
        action(house, booked)
    let_graces_pass(house)
    house.reconciled()
    assert windows_of(house) == promised(house)
    assert house.dispatcher.verify_windows().equal


def test_three_masters_serve_the_house(redis_server: RedisServer, sqlite_url: str) -> None:
    """A cluster that ``make test`` has time for; the parametrised tests say more."""
    with three_masters() as cluster, house_in(cluster, redis_server, sqlite_url) as house:
        act(house, look, deliver)
        owners = {cluster.master_of_key(name) for name in windows_of(house)}
        assert len(owners) == 3
