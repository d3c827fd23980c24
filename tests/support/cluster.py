"""Redis Clusters: one node that serves every slot, alone or beside a new node that serves none;
and three masters with a replica each.

Clients and the other nodes reach a node through a port of the loopback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, cast

import pytest
import redis
from redis.crc import key_slot

from tests.support.network import Host
from tests.support.nodes import CLUSTER, PORTS, Node, client_of, replicating, started
from tests.support.waiting import wait_until

SLOTS = 16_384
MASTERS = 3
QUICK_MS = 1_500
"""A ``cluster-node-timeout`` for tests of failovers, which take about twice as long."""
NEVER_MS = 60_000
"""A ``cluster-node-timeout`` for tests without any: a busy machine must not cause one."""
_MOST_KEYS = 100


class Member(Node):
    def __init__(self, *options: str, host: Host | None = None, port: int = 0) -> None:
        super().__init__("--cluster-enabled", "yes", *options, host=host, port=port)
        self.id = ""

    @property
    def nodes(self) -> tuple[Member, ...]:
        """Itself: where it serves every slot it is a cluster."""
        return (self,)

    @property
    def serves(self) -> bool:
        return cast("dict[str, str]", self.command("CLUSTER INFO"))["cluster_state"] == "ok"

    @property
    def moving(self) -> set[int]:
        """The slots that it gives away or receives."""
        return {int(migration["slot"]) for migration in self._own()["migrations"]}

    @property
    def epoch(self) -> int:
        """The age of what it says of its slots: the greatest is the newest."""
        return int(self._own()["epoch"])

    def claims(self, slot: int) -> bool:
        own = self._own()
        return "master" in own["flags"] and any(
            int(ends[0]) <= slot <= int(ends[-1]) for ends in own["slots"]
        )

    def _own(self) -> dict[str, Any]:
        return next(facts for facts in self.known().values() if "myself" in facts["flags"])

    def known(self) -> dict[str, dict[str, Any]]:
        nodes = cast("dict[str, dict[str, Any]]", self.command("CLUSTER NODES"))
        return {
            address: facts
            for address, facts in nodes.items()
            if "handshake" not in facts["flags"] and "noaddr" not in facts["flags"]
        }


class Cluster:
    """Three masters with one replica each.

    Every wait has a deadline that only a cluster which never gets there reaches.
    """

    def __init__(self, nodes: Sequence[Member]) -> None:
        self.nodes = tuple(nodes)

    @property
    def url(self) -> str:
        """The URL that the settings take: one master and one replica as the start."""
        return f"{CLUSTER}{self.nodes[0].address},{self.nodes[-1].address}"

    @property
    def alive(self) -> list[Member]:
        return [node for node in self.nodes if node.alive]

    @property
    def is_whole(self) -> bool:
        try:
            return (
                len(self.alive) == len(self.nodes)
                and all(node.serves for node in self.nodes)
                and self._agree()
                and all(node.has_replica for node in self.masters)
            )
        except (redis.RedisError, RuntimeError, OSError, StopIteration):  # a node went away
            return False

    @property
    def masters(self) -> list[Member]:
        """The living nodes that serve slots, by the first of them."""
        known = {owner.port: owner for _, _, owner in self.ranges()}
        return [node for node in known.values() if node in self.alive]

    def client(self) -> redis.Redis:
        return client_of(self.url)

    def ranges(self, seen_by: Member | None = None) -> list[tuple[int, int, Member]]:
        known = (seen_by or self.alive[0]).known()
        shares = [
            (int(ends[0]), int(ends[-1]), self._at(address))
            for address, facts in known.items()
            for ends in facts["slots"]
        ]
        return sorted(shares, key=lambda share: share[0])

    def master_of(self, slot: int) -> Member:
        """Return the node that serves a slot, or did so last.

        What a node says of itself counts most: one that imports a slot does not follow what
        becomes of its owner.
        """
        claims = [(node.epoch, node) for node in self.alive if node.claims(slot)]
        if claims:
            return max(claims, key=lambda claim: claim[0])[1]
        return next(owner for owner in self.owners(slot) if owner)

    def owners(self, slot: int) -> list[Member | None]:
        """Return the owner of a slot as each living node knows it.

        None where the old owner has said that it is a replica now, and the new one nothing yet.
        """
        return [
            next((owner for first, last, owner in self.ranges(by) if first <= slot <= last), None)
            for by in self.alive
        ]

    def master_of_key(self, key: bytes | str) -> Member:
        return self.master_of(slot_of(key))

    def replica_of(self, master: Member) -> Member:
        return next(
            self._at(address)
            for address, facts in self.alive[0].known().items()
            if facts["master_id"] == master.id and self._at(address) in self.alive
        )

    def elsewhere(self, master: Member) -> Member:
        return next(node for node in self.masters if node is not master)

    def wait_for_failover(self, slot: int, old: Member) -> Member:
        """Return the node that serves a slot instead of ``old``, once all others say so."""
        wait_until(lambda: not {None, old} & {*self.owners(slot)})
        self.wait_until_ok()
        return self.master_of(slot)

    def wait_until_ok(self) -> None:
        wait_until(lambda: all(node.serves for node in self.alive))

    def wait_for_replicas(self) -> None:
        """Wait until all nodes live and agree, and every master has a replica that caught up."""
        wait_until(lambda: self.is_whole)

    def fail_over(self, master: Member) -> Member:
        """Let a replica take over from a master that agrees, without a loss; return it."""
        self.wait_for_replicas()  # one that has not caught up gives up after 5 s
        slot = next(first for first, _, owner in self.ranges() if owner is master)
        self.replica_of(master).command("CLUSTER", "FAILOVER")
        return self.wait_for_failover(slot, master)

    @contextmanager
    def moving(self, slot: int, to: Member) -> Iterator[Callable[[], object]]:
        """Move a slot and its keys to another master, by the steps of ``redis-cli --cluster``.

        Inside, no key has moved yet; each call of the yielded function moves one. Until
        the end, keys that have moved answer ASK, and commands on several keys may answer TRYAGAIN.
        """
        self.begin_move(slot, to)
        try:
            yield lambda: self.move_one(slot, to)
        finally:
            self.end_move(slot, to)

    def begin_move(self, slot: int, to: Member) -> None:
        source = self.master_of(slot)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)

    def move_one(self, slot: int, to: Member, most: int = 1) -> int:
        source = self.master_of(slot)
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            # What lies there already was left by a move that a failover of the source ended.
            words = ("MIGRATE", to.ip, to.port, "", 0, 60_000, "REPLACE", "KEYS")
            source.command(*words, *keys)
        return len(keys)

    def end_move(self, slot: int, to: Member) -> None:
        source = self.master_of(slot)
        while self.move_one(slot, to, _MOST_KEYS):
            pass
        # The new owner first: a slot whose old owner forgets it first would have none.
        for node in (to, source, *self.masters):
            with suppress(redis.ResponseError):  # "I'm a replica", perhaps
                node.command("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        wait_until(lambda: {*self.owners(slot)} == {to})

    def mend(self) -> None:
        for node in self.nodes:
            node.start()
            if node.frozen:
                node.thaw()
            node.command("CONFIG", "SET", "maxmemory", 0)
        for slot in {slot for node in self.nodes for slot in node.moving}:
            self.mend_slot(slot)
        self.wait_for_replicas()

    def mend_slot(self, slot: int) -> None:
        """End a move, also one in which a node died: as ``redis-cli --cluster fix`` does."""

        failures: list[Exception] = []

        def mended() -> bool:
            try:
                self._mend_slot(slot)
            except (redis.RedisError, RuntimeError, OSError, StopIteration) as error:
                failures.append(error)  # a node is away, perhaps
                return False
            return True

        try:
            wait_until(mended, every=0.2)
        except AssertionError as error:
            raise AssertionError(f"slot {slot}: {failures[-1]}\n{self.told()}") from error

    def _mend_slot(self, slot: int) -> None:
        owner = self.master_of(slot)
        importing = [node for node in self.masters if slot in node.moving and node is not owner]
        if importing:
            [to, *_] = importing
            # Without an owner it would refuse everything, also the keys of this slot.
            to.command("CLUSTER", "SETSLOT", slot, "NODE", owner.id)
            wait_until(lambda: to.serves)
            to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", owner.id)
            owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
            self.end_move(slot, to)
        for node in self.masters:
            node.command("CLUSTER", "SETSLOT", slot, "STABLE")

    def told(self) -> str:
        return "\n".join(
            f"{node}: {node.command('CLUSTER', 'NODES').decode()}" for node in self.alive
        )

    def _agree(self) -> bool:
        told = {
            frozenset(
                (address, facts["master_id"], str(facts["slots"]), "fail" in facts["flags"])
                for address, facts in node.known().items()
            )
            for node in self.alive
        }
        masters = [fact for facts in told for fact in facts if fact[1] == "-"]
        return len(told) == 1 and len(masters) == MASTERS

    def _at(self, address: str) -> Member:
        port = int(address.rpartition(":")[2])
        return next(node for node in self.nodes if node.port == port)


@contextmanager
def three_masters(
    *options: str,
    node_timeout_ms: int = NEVER_MS,
    min_replicas: int = 0,
    hosts: Sequence[Host] = (),
) -> Iterator[Cluster]:
    """Start three masters with one replica each; give them when all replicas have caught up.

    With six ``hosts`` each node has one of its own, the masters the first three.
    """
    timeout = ("--cluster-node-timeout", str(node_timeout_ms))
    options = (*timeout, *replicating(min_replicas), *options)

    def make(number: int) -> Member:
        if not hosts:
            return Member(*options)
        return Member(*options, host=hosts[number], port=PORTS[number])

    with ExitStack() as stack:
        nodes = [
            stack.enter_context(started(partial(make, number))) for number in range(2 * MASTERS)
        ]
        for number, node in enumerate(nodes):
            node.id = node.command("CLUSTER", "MYID").decode()
            # Where two masters begin with the same epoch, they agree on others in seconds only.
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in nodes[:number]:
                node.command("CLUSTER", "MEET", other.ip, other.port)
        masters, replicas = nodes[:MASTERS], nodes[MASTERS:]
        for number, node in enumerate(masters):
            share = range(SLOTS * number // MASTERS, SLOTS * (number + 1) // MASTERS)
            node.command("CLUSTER", "ADDSLOTS", *share)
        wait_until(lambda: all(len(node.known()) == len(nodes) for node in nodes))
        for master, replica in zip(masters, replicas, strict=True):
            replica.command("CLUSTER", "REPLICATE", master.id)
        cluster = Cluster(nodes)
        wait_until(lambda: all(len(cluster.ranges(node)) == MASTERS for node in nodes))
        cluster.wait_for_replicas()
        yield cluster


@contextmanager
def cluster_of_one() -> Iterator[Member]:
    with started(Member) as server:
        server.command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        wait_until(lambda: server.serves)
        yield server


CLUSTERS = (
    pytest.param(cluster_of_one, id="one node"),
    pytest.param(three_masters, id="three masters", marks=pytest.mark.long),
)


@contextmanager
def one_and_a_new_node() -> Iterator[tuple[Cluster, Member]]:
    """Start a cluster of one node that serves all slots and one that serves none; give both."""
    with started(Member) as old, started(Member) as new:
        old.command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        new.command("CLUSTER", "MEET", old.ip, old.port)
        cluster = Cluster([old, new])
        for node in cluster.nodes:
            node.id = node.command("CLUSTER", "MYID").decode()
        wait_until(lambda: all(cluster.ranges(node) for node in cluster.nodes))
        cluster.wait_until_ok()
        yield cluster, new


def slot_of(key: bytes | str) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)
