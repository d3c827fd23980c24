"""A Redis that is a cluster of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


@contextmanager
def cluster_of_one() -> Iterator[tuple[RedisServer, int]]:
    """Start one Redis that serves all 16384 slots; give it and its port on the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1] % 40_000 + 10_000  # its bus listens 10,000 above
    options = ("--cluster-enabled", "yes", "--port", str(port), "--bind", "127.0.0.1")
    with RedisServer(*options) as server:
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
            wait_until(lambda: _serves(server))
        yield server, port


def _serves(server: RedisServer) -> bool:
    with server.client() as client:
        return "cluster_state:ok" in str(client.execute_command("CLUSTER INFO")).replace(
            "': '", ":"
        )
