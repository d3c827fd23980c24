"""Redis Cluster: its client, its servers, and calls that go to several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

import redis
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from dispatcher.redis.errors import ERRORS, UnfitServer

_RETRIES = 1
_ALONE = "the server of redis_url is no Redis Cluster: write redis://…"
_REDIRECTED = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
"""Answers of a node that does not hold all keys of a call (yet). A MovedError is an AskError."""
_SILENT = (redis.ConnectionError, redis.TimeoutError)
_PATIENCE = Retry(FullJitterBackoff(base=0.05, cap=0.4), 1, (redis.exceptions.ClusterError,))
"""For the time in which a hash slot moves: its keys are in two places, and calls with both fail."""
_Ask = Callable[[redis.Redis, Sequence[int]], Sequence[Any]]


class Cluster:
    """A client of a cluster: redis-py's, made and connected at the first call."""

    def __init__(self, addresses: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        self._addresses = addresses
        self._options = options
        self._lock = Lock()
        self._client: RedisCluster | None = None
        self._new_nodes: dict[str, ClusterNode] = {}

    def connected(self) -> RedisCluster:
        with self._lock:
            # redis-py before 7 forgets nodes that do not answer; without any it never reconnects.
            if self._client is None or not self._client.nodes_manager.startup_nodes:
                masters = [ClusterNode(*address) for address in self._masters()]
                self._client = RedisCluster(
                    startup_nodes=masters,
                    retry=short_retry(),
                    reinitialize_steps=1,
                    **self._options,
                )
                # https://github.com/redis/redis-py/pull/4214
                manager: Any = self._client.nodes_manager
                manager.get_node = partial(self._node, manager.get_node)
            return self._client

    def _node(
        self,
        find: Callable[..., ClusterNode | None],
        host: str | None = None,
        port: int | None = None,
        node_name: str | None = None,
    ) -> ClusterNode | None:
        """Return the node that redis-py finds; where it finds none, a new one of that name.

        While a node gets its first hash slot, calls are redirected to it (ASK). redis-py knows only
        nodes that have hash slots, and would end such a call with an AttributeError.
        """
        node = find(host, port, node_name)
        if node is None and node_name:
            new_host, _, new_port = node_name.rpartition(":")
            return self._new_nodes.setdefault(node_name, ClusterNode(new_host, int(new_port)))
        return node

    def _masters(self) -> list[tuple[str, int]]:
        """Return the addresses of the masters: the given ones may be replicas by now."""
        options = {**self._options, "redis_connect_func": None, "retry": Retry(NoBackoff(), 0)}
        failure: redis.RedisError | None = None
        for host, port in self._addresses:
            try:
                with redis.Redis(host=host, port=port, **options) as client:
                    slots: Any = client.execute_command("CLUSTER SLOTS")
            except redis.RedisError as error:
                is_alone = "cluster support disabled" in str(error)
                failure = UnfitServer(_ALONE) if is_alone else error
                continue
            masters = {
                ((name or b"").decode() or host, int(at)) for _, _, (name, at, *_), *_ in slots
            }
            if masters:
                return sorted(masters)
        raise failure or redis.exceptions.ClusterDownError("no hash slots are served")

    def replies(
        self,
        keys: Sequence[bytes | str],
        ask: _Ask,
        command: Callable[[int], Sequence[bytes | str]],
    ) -> list[Any]:
        """Return the reply to each call, which may be an error.

        ``keys`` has one key of each. ``ask`` makes the calls of some numbers on one server;
        ``command`` is one call as a command, which any server understands. redis-py's own pipeline
        looks for each command's node anew, and after a failure sends one after the other.
        """
        replies = self._answers(keys, range(len(keys)), ask)
        lost = [number for number, reply in replies.items() if isinstance(reply, _SILENT)]
        if lost:
            self.connected().nodes_manager.initialize()
            replies |= self._answers(keys, lost, ask)
        stuck: dict[int, Exception] = {}
        for number, key in enumerate(keys):
            if isinstance(replies[number], _REDIRECTED):
                slot = self.keyslot(key)
                try:
                    replies[number] = stuck.get(slot) or _PATIENCE.call_with_retry(
                        partial(self.execute_command, *command(number)), lambda _: None
                    )
                except ERRORS as error:
                    replies[number] = stuck[slot] = error
        return [replies[number] for number in range(len(keys))]

    def _answers(
        self, keys: Sequence[bytes | str], numbers: Sequence[int], ask: _Ask
    ) -> dict[int, Any]:
        """Make calls. A node that is silent keeps no other one from its calls."""
        answers: dict[int, Any] = {}
        for server, places in self.by_server([keys[number] for number in numbers]).items():
            asked = [numbers[place] for place in places]
            try:
                answers |= zip(asked, ask(server, asked), strict=True)
            except _SILENT as error:
                answers |= dict.fromkeys(asked, error)
        return answers

    def by_server(self, keys: Sequence[bytes | str]) -> dict[redis.Redis, list[int]]:
        cluster, numbers = self.connected(), dict[redis.Redis, list[int]]()
        for number, key in enumerate(keys):
            node = cluster.get_node_from_key(key)
            numbers.setdefault(cluster.get_redis_connection(node), []).append(number)
        return numbers

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            for node in self._new_nodes.values():
                if node.redis_connection is not None:
                    node.redis_connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connected(), name)


def masters_of(client: redis.Redis) -> dict[str, redis.Redis]:
    """Return a client of each server that holds keys, by its name: "" for the only one."""
    if not isinstance(client, Cluster):
        return {"": client}
    cluster = client.connected()
    return {
        node.name: cluster.get_redis_connection(node)
        for node in sorted(cluster.get_primaries(), key=lambda node: node.name)
    }


def by_server(client: redis.Redis, keys: Sequence[bytes | str]) -> dict[redis.Redis, list[int]]:
    """Return a client of each server that holds some of ``keys``, with the numbers of those."""
    if not isinstance(client, Cluster):
        return {client: [*range(len(keys))]}
    return client.by_server(keys)


def refresh(client: redis.Redis) -> None:
    """Ask a cluster again which server holds which keys; do nothing where there is none."""
    if isinstance(client, Cluster):
        client.connected().nodes_manager.initialize()


def short_retry() -> Retry:
    return Retry(FullJitterBackoff(base=0.01, cap=0.1), _RETRIES)
