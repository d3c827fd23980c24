"""A Redis with one replica, watched by three sentinels."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

import redis

from tests.support.nodes import SENTINEL, Node, client_of, replicating, started
from tests.support.servers import redis_executable
from tests.support.waiting import wait_until

NAME = "gate"
"""What the sentinels call the master."""
QUICK_MS = 1_000
_SENTINELS, _QUORUM = 3, 2


class Sentinel(Node):
    def __init__(self, master: Node) -> None:
        super().__init__()
        self._master = master

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        config = self.folder / "sentinel.conf"
        if not config.exists():
            lines = (
                f"port {self.port}",
                "bind 127.0.0.1",
                f"dir {self.folder}",
                f"unixsocket {self.socket}",
                f"sentinel monitor {NAME} 127.0.0.1 {self._master.port} {_QUORUM}",
                f"sentinel down-after-milliseconds {NAME} {QUICK_MS}",
                f"sentinel failover-timeout {NAME} {5 * QUICK_MS}",
            )
            config.write_text("\n".join(lines) + "\n")
        return subprocess.Popen(
            [redis_executable(), config, "--sentinel"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    @property
    def is_ready(self) -> bool:
        seen = self.seen()
        return int(seen["num-slaves"]) == 1 and int(seen["num-other-sentinels"]) == _SENTINELS - 1

    def seen(self) -> dict[str, str]:
        seen: dict[bytes, bytes] = self.command("SENTINEL", "MASTER", NAME)
        return {name.decode(): value.decode() for name, value in seen.items()}


class Watched:
    def __init__(self, nodes: Sequence[Node], sentinels: Sequence[Sentinel]) -> None:
        self.nodes = tuple(nodes)
        self.sentinels = tuple(sentinels)

    @property
    def url(self) -> str:
        return f"{SENTINEL}{','.join(sentinel.address for sentinel in self.sentinels)}/{NAME}/0"

    def client(self) -> redis.Redis:
        return client_of(self.url)

    @property
    def master(self) -> Node:
        """The master that most sentinels name."""
        ports = sorted(
            int(sentinel.seen()["port"]) for sentinel in self.sentinels if sentinel.alive
        )
        return next(node for node in self.nodes if node.port == ports[len(ports) // 2])

    def wait_for_failover(self, old: Node) -> Node:
        def took_over() -> Node | None:
            new = self.master
            is_master = new is not old and new.ask(lambda client: client.role()[0]) == b"master"
            return new if is_master else None

        return cast("Node", wait_until(took_over))

    def restart(self, node: Node) -> None:
        """Start a killed node again as a replica of the master that there is now."""
        node.start()
        node.command("REPLICAOF", "127.0.0.1", self.master.port)

    def wait_for_replica(self) -> None:
        wait_until(lambda: all(node.alive for node in self.nodes) and self.master.has_replica)


@contextmanager
def watched_pair() -> Iterator[Watched]:
    """Start a master, a replica and three sentinels; give them when they know each other."""
    options = replicating(min_replicas=0)
    with ExitStack() as stack:
        master, replica = [stack.enter_context(started(lambda: Node(*options))) for _ in range(2)]
        replica.command("REPLICAOF", "127.0.0.1", master.port)
        wait_until(lambda: master.has_replica)
        sentinels = [
            stack.enter_context(started(lambda: Sentinel(master))) for _ in range(_SENTINELS)
        ]
        wait_until(lambda: all(sentinel.is_ready for sentinel in sentinels))
        yield Watched([master, replica], sentinels)
