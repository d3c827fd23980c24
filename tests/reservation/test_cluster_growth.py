"""Hash slots move to a new node of the cluster, which has none yet, while the dispatcher works.

redis-py knows the new node by redirections alone, until its first hash slot has moved.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher import (
    Draft,
    LimitersUnavailable,
    Message,
    QuotaExceeded,
    ReservationsUnavailable,
    Status,
    TooLate,
)
from dispatcher.limiters.permits import Permit
from dispatcher.message import new_id
from dispatcher.redis.client import connect_redis, ping
from dispatcher.redis.cluster import refresh
from tests.support.cluster import Cluster, Member, one_and_a_new_node, slot_of
from tests.support.house import (
    BODY,
    House,
    hour_ago,
    house_on,
    let_graces_pass,
    promised,
    windows_of,
)
from tests.support.model import excesses
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

HOUR = timedelta(hours=1)
PEOPLE = [f"person {number}" for number in range(8)]
TENANTS = ["acme", "bolt"]
LIMIT = 40
SETTINGS: dict[str, Any] = {
    "quotas": ["3/hour"],
    "channels": {"memory": {"transport": "memory", "limits": [f"{LIMIT}/day"]}},
    "scopes": {"tenant": {"quotas": ["9/hour"]}},
    "shards": 4,
}
AT_EACH_STEP = 8
"""How many calls are made before the next key moves."""
UNAVAILABLE = (ReservationsUnavailable, LimitersUnavailable)


@pytest.fixture
def growing() -> Iterator[tuple[Cluster, Member]]:
    """Give a cluster and its new node."""
    with one_and_a_new_node() as pair:
        yield pair


@pytest.fixture
def house(
    growing: tuple[Cluster, Member], redis_server: RedisServer, database_url: str
) -> Iterator[House]:
    with house_on(
        redis_server, database_url, gate=growing[0], clock=hour_ago(), **SETTINGS
    ) as built:
        yield built


class Caller:
    """Submits, moves and cancels messages and asks for permits."""

    def __init__(self, house: House, seed: int) -> None:
        self.accepted: set[UUID] = set()
        self.cancelled: set[UUID] = set()
        self.permits = 0
        self._house = house
        self._chance = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret

    def call(self) -> None:
        with suppress(QuotaExceeded, TooLate, *UNAVAILABLE):
            self._call(self._chance.choice(["submit", "many", "move", "cancel", "permit"]))

    def _call(self, name: str) -> None:
        desk, chance = self._house.dispatcher, self._chance
        person, later = chance.choice(PEOPLE), chance.randrange(10, 200) * HOUR / 8
        wish: dict[str, Any] = {"channel": "memory", "body": BODY, "send_in": later}
        wish["scopes"] = {"tenant": chance.choice(TENANTS)}
        if name == "permit":
            asked = [Permit(new_id(), 1, person, "memory")]
            self.permits += self._house.parts.permits.acquire(asked, within=HOUR)[0].allowed
        elif name == "submit" or not self.accepted:
            self.accepted.add(desk.submit(recipient=person, **wish).id)
        elif name == "many":
            results = desk.submit_many([Draft(recipient=person, **wish) for person in PEOPLE])
            self.accepted |= {result.id for result in results if isinstance(result, Message)}
        elif name == "move":
            desk.reschedule(chance.choice(sorted(self.accepted)), send_in=later)
        else:
            message_id = chance.choice(sorted(self.accepted))
            desk.cancel(message_id)
            self.cancelled.add(message_id)


@pytest.mark.long
def test_callers_are_answered_while_hash_slots_move_to_a_new_node(
    house: House, growing: tuple[Cluster, Member]
) -> None:
    """P1, P2, P3, P7, P10: each error is a documented one, and nothing needs a restart."""
    cluster, new = growing
    caller = Caller(house, seed=1)

    def go_on() -> None:
        for _ in range(AT_EACH_STEP):
            caller.call()

    go_on()
    for epoch in (house.keys("@tenant:acme").epoch, house.permit_keys("memory").epoch):
        with cluster.moving(slot_of(epoch), new) as move_one:
            for _ in range(2):
                move_one()
                go_on()
            sweep(house)
        assert caller.permits <= LIMIT
        sweep(house)
    wait_until(lambda: serves(house))
    go_on()
    let_graces_pass(house)
    house.reconciled()
    assert windows_of(house) == promised(house)
    assert house.dispatcher.verify_windows().equal
    kept = {message.id: message.status for message in house.dispatcher.select()}
    assert caller.accepted <= kept.keys()
    assert {kept[one] for one in caller.cancelled} <= {Status.CANCELLED}
    assert {kept[one] for one in caller.accepted - caller.cancelled} == {Status.SCHEDULED}
    for name, members in promised(house).items():
        most = 9 if "tenant" in name else 3
        assert [*excesses([*members.values()], [(most, 3_600_000)])] == []


def test_a_part_whose_hash_slot_is_moving_does_not_keep_others_closed(
    house: House, growing: tuple[Cluster, Member]
) -> None:
    """P7, P10: Redis was restarted, and a move has stopped half way."""
    cluster, new = growing
    scopes = {"tenant": "acme"}
    message = house.submit("ada", scopes=scopes, send_in=HOUR)
    moving = house.keys("@tenant:acme").epoch
    epochs = [part.epoch for part in house.parts.fence.parts]
    old = cluster.master_of(slot_of(moving))
    with cluster.moving(slot_of(moving), new):
        for epoch in epochs:
            old.command("DEL", epoch)
        sweep(house)
        others = [epoch for epoch in epochs if epoch != moving]
        assert all(old.command("EXISTS", other) for other in others)
    wait_until(lambda: serves(house))
    assert house.dispatcher.verify_windows().equal
    assert house.again(message).status is Status.SCHEDULED


def test_a_client_that_has_forgotten_the_only_node_connects_again(
    growing: tuple[Cluster, Member], database_url: str
) -> None:
    """redis-py before 7 forgets each node that does not answer."""
    with closing(connect_redis(growing[0].url)) as client:
        ping(client)
        client.nodes_manager.startup_nodes.clear()  # type: ignore[attr-defined]
        refresh(client)
        ping(client)


def serves(house: House) -> bool:
    """Sweep; return whether the shard that has moved books again."""
    sweep(house)
    with suppress(ReservationsUnavailable):
        house.submit("the last", scopes={"tenant": "acme"}, send_in=50 * HOUR)
        return True
    return False


def sweep(house: House) -> None:
    with suppress(*UNAVAILABLE):
        house.parts.reconciler.reconcile(settle=timedelta(0))
