"""No script runs against windows or permit logs that a restart or a failover made stale.

A Redis that comes back from its log, or a replica that takes over, may lack the last writes while
its data look whole. Every such change breaks the connections to it, and there are none to a
replica. So every new connection first learns which process it talks to, and takes back the epoch of
each part (a shard of the windows, or of the permit logs) that was declared complete on another one;
only then does it carry a script. The part stays closed until the sweep has rebuilt it.

A node of a cluster is asked about the parts that it holds. A part that moves to another node by
resharding is closed there in the same way: its data cannot be told from those of a failover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis

from dispatcher.redis.cluster import by_server, refresh
from dispatcher.redis.errors import REPLICA, EvictingServer
from dispatcher.redis.keys import PermitKeys, ShardKeys, permit_parts, shard_of, start_of
from dispatcher.redis.scripts import replies_of, script
from dispatcher.scope import Scope

Part = ShardKeys | PermitKeys
Info = bytes | str | Mapping[str, Any]
"""The reply to INFO, as it comes or read."""

_ANOTHER_LAYOUT = 2
_COMPLETE, _UNMARK = script("reservation/fence"), script("reservation/unmark")
_ELSEWHERE = redis.exceptions.AskError  # MovedError is one


def identity(info: Info) -> str:
    """Return what tells this server process, in this role, from every other.

    ``info`` is the reply to INFO. Raises EvictingServer.
    """
    fields = fields_of(info)
    policy = fields.get("maxmemory_policy", "unknown")
    if policy != "noeviction":
        raise EvictingServer(f"Redis runs maxmemory-policy {policy}; it must be noeviction")
    return server_of(info)


def server_of(info: Info) -> str:
    """Return the same, whatever the server's policy."""
    fields = fields_of(info)
    return f"{fields.get('run_id', '')}:{fields.get('master_replid', '')}"


def fields_of(info: Info) -> dict[str, str]:
    if isinstance(info, Mapping):
        return {name: str(value) for name, value in info.items()}
    text = info.decode() if isinstance(info, bytes) else info
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


class Fence:
    """Greets each new connection: pass it to ``connect_redis``.

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
        self.parts: tuple[Part, ...] = (*self.keys, *permit_parts(namespace, shards))
        self.reaches_ms = dict(reaches_ms)
        self._permits_ms = dict(permits_ms or {})
        self._by_start = {keys.contents.encode(): keys for keys in self.keys}

    def __call__(self, connection: Any) -> None:
        """Check every part that the server holds.

        Raises redis.ConnectionError for a replica: it may become the master later.
        """
        [info] = _answers(connection, [("INFO",)])
        if fields_of(info).get("role") == "slave":
            raise redis.ConnectionError(REPLICA)
        server = identity(info)
        shas = _answers(
            connection, [("SCRIPT", "LOAD", script.text) for script in (_COMPLETE, _UNMARK)]
        )
        replies = _answers(
            connection,
            [
                ("EVALSHA", sha, 1, key, server, *words)
                for part in self.parts
                for sha, key, words in zip(
                    shas, (part.epoch, part.rebuild), (self.layout(part), ()), strict=True
                )
            ],
        )
        if _ANOTHER_LAYOUT in replies:
            _answers(connection, [("DEL", part.epoch) for part in self.parts])

    def keys_of(self, scope: Scope) -> ShardKeys:
        return self.keys[shard_of(scope.home, len(self.keys))]

    def window_of(self, scope: Scope) -> tuple[ShardKeys, bytes]:
        keys = self.keys_of(scope)
        return keys, keys.window(scope.name, scope.kind).encode()

    def shard_of(self, name: bytes) -> ShardKeys | None:
        """Return the shard of the window of that name; None for any other key or layout."""
        return self._by_start.get(start_of(name))

    def layout(self, part: Part) -> tuple[str | int, ...]:
        """Return what the epoch of ``part`` must say: number of shards, then each reach in ms."""
        reaches = self.reaches_ms if isinstance(part, ShardKeys) else self._permits_ms
        words = (word for reach in reaches.items() for word in reach)
        return len(self.keys), *words

    def incomplete(self, client: redis.Redis, parts: Sequence[Part]) -> dict[Part, str]:
        """Check parts again; return those that are closed, and the identity of their server.

        Raises EvictingServer, a redis error, when a server evicts.
        """
        of_part = self.holders(client, parts)
        replies_of(client, _UNMARK, [([part.rebuild], [of_part[part]]) for part in parts])
        replies = replies_of(
            client,
            _COMPLETE,
            [([part.epoch], [of_part[part], *self.layout(part)]) for part in parts],
        )
        if _ANOTHER_LAYOUT in replies:
            self.close(client, self.parts)
            return of_part
        return {
            part: of_part[part]
            for part, complete in zip(parts, replies, strict=True)
            if not complete
        }

    def holders(
        self,
        client: redis.Redis,
        parts: Sequence[Part],
        identify: Callable[[Info], str] = identity,
    ) -> dict[Part, str]:
        identities: dict[Part, str] = {}
        for server, numbers in by_server(client, [part.epoch for part in parts]).items():
            info = server.info()
            if info.get("role") == "slave":
                refresh(client)
                raise redis.ConnectionError(REPLICA)
            identities |= dict.fromkeys((parts[number] for number in numbers), identify(info))
        return identities

    def close(self, client: redis.Redis, parts: Sequence[Part]) -> None:
        """Take epochs back: nothing is booked or sent there until a rebuild."""
        pipeline = client.pipeline(transaction=False)
        for part in parts:
            pipeline.delete(part.epoch)
        pipeline.execute()


def _answers(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the reply to each command; None where a node of a cluster does not hold the key."""
    connection.send_packed_command(connection.pack_commands(commands))
    replies: list[Any] = []
    failure: Exception | None = None
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except _ELSEWHERE:
            replies.append(None)
        except redis.ResponseError as error:
            failure = failure or error  # the other replies are read, too
    if failure is not None:
        raise failure
    return replies
