"""Redis servers on ports of the loopback, which a test commands past all clients."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

from tests.support.network import Host
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

PORTS = range(10_000, 22_000)
"""Below the ports that the system gives to clients, and so are those of the buses."""
BUS_ABOVE = 10_000
"""Where the bus of a cluster's node listens, above its port."""
_ATTEMPTS = 20
T = TypeVar("T")


class Node(RedisServer):
    """A Redis on a port that it keeps when it is started again.

    The harness commands it through its unix socket. On a host of its own it gets a ``port``.
    """

    def __init__(self, *options: str, host: Host | None = None, port: int = 0) -> None:
        self.port = port or free_port()
        self.ip = host.address if host else "127.0.0.1"
        where = ("--port", str(self.port), "--bind", self.ip, "--protected-mode", "no")
        super().__init__(*where, *options, host=host)

    def __repr__(self) -> str:
        return f"Node({self.port})"

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    @property
    def alive(self) -> bool:
        reached = self.host is None or not self.host.is_cut
        return reached and self.running and not self.frozen

    @property
    def frozen(self) -> bool:
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0] == "T"

    @property
    def is_master(self) -> bool:
        return self.ask(lambda client: bool(client.info("replication")["role"] == "master"))

    @property
    def has_replica(self) -> bool:
        facts = self.ask(lambda client: client.info("replication"))
        online = facts.get("slave0", {}).get("state") == "online"
        return bool(online and facts.get("min_slaves_good_slaves", 1) > 0)

    def ask(self, work: Callable[[redis.Redis], T]) -> T:
        """Run commands here, whichever slots this server has."""
        with self.client() as client:
            return work(client)

    def command(self, *words: str | int | bytes) -> Any:
        return self.ask(lambda client: cast("Any", client).execute_command(*words))

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: self.frozen)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        wait_until(lambda: not self.frozen)

    @contextmanager
    def full(self) -> Iterator[None]:
        self.command("CONFIG", "SET", "maxmemory", 1)
        try:
            yield
        finally:
            self.command("CONFIG", "SET", "maxmemory", 0)


N = TypeVar("N", bound=RedisServer)


def replicating(min_replicas: int) -> tuple[str, ...]:
    return (
        *("--min-replicas-to-write", str(min_replicas), "--min-replicas-max-lag", "2"),
        *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
        *("--repl-ping-replica-period", "1"),
    )


@contextmanager
def started(make: Callable[[], N]) -> Iterator[N]:
    """Start a server; another one where its port is taken first."""
    for _ in range(_ATTEMPTS):
        node = make()
        try:
            node.start()
        except RuntimeError as error:
            node.close()
            if "Address already in use" not in str(error):
                raise
            continue
        with node:
            yield node
        return
    raise RuntimeError("no port stayed free")


def free_port() -> int:
    """Return a port on which nobody listens, nor where the bus of its node would."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as own, socket.socket() as bus, suppress(OSError):
            own.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS_ABOVE))
            return port
    raise RuntimeError("no free port")


CLUSTER, SENTINEL = "redis+cluster://", "redis+sentinel://"


def client_of(url: str) -> redis.Redis:
    if url.startswith(CLUSTER):
        seeds = [cast("Any", ClusterNode)(*address) for address in _addresses(url, CLUSTER)]
        return cast("redis.Redis", RedisCluster(startup_nodes=seeds, protocol=2))
    if url.startswith(SENTINEL):
        _, name, db = url.removeprefix(SENTINEL).split("/")
        sentinel = cast("Any", Sentinel)(_addresses(url, SENTINEL))
        return cast("redis.Redis", sentinel.master_for(name, db=int(db)))
    return redis.Redis.from_url(url)


def _addresses(url: str, scheme: str) -> list[tuple[str, int]]:
    hosts = url.removeprefix(scheme).partition("/")[0].split(",")
    return [(host, int(port)) for host, _, port in (address.partition(":") for address in hosts)]
