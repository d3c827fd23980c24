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

from dispatcher.redis.errors import EvictingServer
from dispatcher.redis.keys import PermitKeys, ShardKeys
from dispatcher.redis.scripts import source

Part = ShardKeys | PermitKeys


_ANOTHER_LAYOUT = 2


class Fence:
    """Greets each new connection; pass it to redis-py as ``redis_connect_func``.

    ``reaches_ms`` is the length in ms of the longest quota of each kind of scope, ``permits_ms``
    that of the longest limit of each kind of permit log: how far back the parts must reach. Raises
    EvictingServer, a redis error, when the server's ``maxmemory-policy`` is not ``noeviction``.
    """

    def __init__(
        self,
        *,
        namespace: str,
        shards: int,
        reaches_ms: Mapping[str, int],
        permits_ms: Mapping[str, int] | None = None,
    ) -> None:
        self.namespace = namespace
        self.keys = tuple(ShardKeys(namespace, shard) for shard in range(shards))
        self.parts: tuple[Part, ...] = (*self.keys, PermitKeys(namespace))
        self.reaches_ms = dict(reaches_ms)
        self._permits_ms = dict(permits_ms or {})

    def __call__(self, connection: Any) -> None:
        """Set the connection up, then check every part."""
        connection.on_connect()
        connection.send_command("INFO")
        server = identity(connection.read_response())
        connection.send_command("SCRIPT", "LOAD", source("reservation/fence"))
        sha = connection.read_response()
        commands = [
            ("EVALSHA", sha, 2, part.epoch, part.rebuild, server, *self.layout(part))
            for part in self.parts
        ]
        connection.send_packed_command(connection.pack_commands(commands))
        replies = [connection.read_response() for _ in commands]
        if _ANOTHER_LAYOUT in replies:
            for part in self.parts:  # one by one: they lie in different slots of a cluster
                connection.send_command("DEL", part.epoch)
                connection.read_response()

    def layout(self, part: Part) -> tuple[str | int, ...]:
        """Return what the epoch of ``part`` must say: number of shards, then each reach in ms."""
        ours = isinstance(part, ShardKeys)
        reaches = self.reaches_ms if ours else self._permits_ms
        words = (word for reach in reaches.items() for word in reach)
        return (len(self.keys) if ours else 0), *words

    def incomplete(self, client: redis.Redis) -> tuple[str, list[Part]]:
        """Check every part again; return the server's identity and the parts that are closed."""
        server = identity(client.info())
        fence = client.register_script(source("reservation/fence"))
        pipeline = client.pipeline(transaction=False)
        for part in self.parts:
            names = [part.epoch, part.rebuild]
            fence(keys=names, args=[server, *self.layout(part)], client=pipeline)
        replies = pipeline.execute()
        if _ANOTHER_LAYOUT in replies:
            self.close(client)
            return server, list(self.parts)
        return server, [
            part for part, complete in zip(self.parts, replies, strict=True) if not complete
        ]

    def close(self, client: redis.Redis) -> None:
        """Take every epoch back: nothing is booked or sent until a rebuild."""
        pipeline = client.pipeline(transaction=False)
        for part in self.parts:
            pipeline.delete(part.epoch)
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
    return server_of(fields)


def server_of(fields: Mapping[str, str]) -> str:
    """Return the identity in the fields of INFO, whatever the server's policy."""
    return f"{fields.get('run_id', '')}:{fields.get('master_replid', '')}"
