"""No script runs against windows or permit logs that a restart or a failover made stale.

A Redis that comes back from its log, or a replica that takes over, may lack the last writes while
its data look whole. Every such change breaks the connections to it. So every new connection first
learns which process it talks to, and takes back the epoch of each part (a shard of the windows, or
the permit logs) that was declared complete on another one; only then does it carry a script. The
part stays closed until the sweep has rebuilt it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from dispatcher.lua import source
from dispatcher.redis_keys import PermitKeys, ShardKeys
from dispatcher.reservation.answers import EvictingServer

Part = ShardKeys | PermitKeys


class Fence:
    """Greets each new connection; pass it to redis-py as ``redis_connect_func``.

    ``longest_ms`` is the length of the longest quota or limit in ms. Raises EvictingServer, a
    redis error, when the server's ``maxmemory-policy`` is not ``noeviction``.
    """

    def __init__(self, *, namespace: str, shards: int, longest_ms: int) -> None:
        self.keys = tuple(ShardKeys(namespace, shard) for shard in range(shards))
        self.parts: tuple[Part, ...] = (*self.keys, PermitKeys(namespace))
        self.longest_ms = longest_ms

    def __call__(self, connection: Any) -> None:
        """Set the connection up, then check every part."""
        connection.on_connect()
        connection.send_command("INFO")
        server = identity(connection.read_response())
        commands: list[tuple[str | int, ...]] = [("SCRIPT", "LOAD", source("fence"))]
        connection.send_packed_command(connection.pack_commands(commands))
        sha = connection.read_response()
        commands = [
            ("EVALSHA", sha, 2, keys.epoch, keys.rebuild, server, len(self.keys), self.longest_ms)
            for keys in self.parts
        ]
        connection.send_packed_command(connection.pack_commands(commands))
        for _ in commands:
            connection.read_response()

    def incomplete(self, client: redis.Redis) -> tuple[str, list[Part]]:
        """Check every part again; return the server's identity and the parts that are closed."""
        server = identity(client.info())
        pipeline = client.pipeline(transaction=False)
        for keys in self.parts:
            arguments = (keys.epoch, keys.rebuild, server, len(self.keys), self.longest_ms)
            pipeline.eval(source("fence"), 2, *arguments)
        replies = pipeline.execute()
        return server, [
            keys for keys, complete in zip(self.parts, replies, strict=True) if not complete
        ]

    def close(self, client: redis.Redis) -> None:
        """Take every epoch back: nothing is booked or sent until a rebuild."""
        pipeline = client.pipeline(transaction=False)
        for keys in self.parts:
            pipeline.delete(keys.epoch)
        pipeline.execute()


def identity(info: bytes | str | Mapping[str, Any]) -> str:
    """Return what tells this server process, in this role, from every other.

    ``info`` is the reply to INFO. Raises EvictingServer.
    """
    if isinstance(info, Mapping):
        fields = {name: str(value) for name, value in info.items()}
    else:
        text = info.decode() if isinstance(info, bytes) else info
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    policy = fields.get("maxmemory_policy", "unknown")
    if policy != "noeviction":
        raise EvictingServer(f"Redis runs maxmemory-policy {policy}; it must be noeviction")
    return f"{fields.get('run_id', '')}:{fields.get('master_replid', '')}"
