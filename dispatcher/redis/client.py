"""The client of the Redis of the settings, and the clock of that server.

The Redis is one server, the master that sentinels name, or the masters of a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from dispatcher.errors import InvalidSettings
from dispatcher.redis.errors import REPLICA, UnfitServer

_SECONDS = 1.0
_RETRIES = 1
_PORT, _SENTINEL_PORT = 6379, 26379
_ALONE = "the server of redis_url is no Redis Cluster: write redis://…"
_ACCEPTED = (
    "redis://…, rediss://…, unix://…, redis+cluster://host:port,host:port or "
    "redis+sentinel://host:port,host:port/master"
)
_SEVERAL = re.compile(r"^(rediss?)\+(cluster|sentinel)://")

OnConnect = Callable[[Any], None]


def connect_redis(url: str, *, on_connect: OnConnect | None = None) -> redis.Redis:
    """Return a client with a timeout of a second that retries a call once. Raises InvalidSettings.

    It calls ``on_connect`` with each new connection that is set up, before the first command. The
    client of a cluster is a ``RedisCluster`` that connects with its first call.
    """
    options: dict[str, Any] = {
        "protocol": 2,
        "redis_connect_func": on_connect and after_set_up(on_connect),
        "socket_timeout": _SECONDS,
    }
    if not url.startswith("unix:"):
        options |= {"socket_connect_timeout": _SECONDS, "socket_keepalive": True}
    several = _SEVERAL.match(url)
    try:
        if several is None:
            client = redis.Redis.from_url(url, **options, **repeated(_retry()))
            pool = client.connection_pool
            _check_options(pool.connection_class, pool.connection_kwargs)
            return client
        nodes = _Nodes.of(url, _PORT if several[2] == "cluster" else _SENTINEL_PORT)
    except ValueError:
        raise InvalidSettings("redis_url", "cannot be read", _ACCEPTED) from None
    options |= nodes.options
    if several[2] == "cluster":
        # redis-py sets up connections to nodes of a cluster itself.
        return cast("redis.Redis", Cluster(nodes, options | {"redis_connect_func": on_connect}))
    return _master_of(nodes, options)


def after_set_up(on_connect: OnConnect) -> OnConnect:
    """Return a ``redis_connect_func`` that sets a connection up and then calls ``on_connect``."""

    def connected(connection: Any) -> None:
        connection.on_connect()
        on_connect(connection)

    return connected


def masters_of(client: redis.Redis) -> dict[str, redis.Redis]:
    """Return a client of each server that holds keys, by its name: "" for the only one.

    Raises redis.RedisError and RedisClusterException.
    """
    if not isinstance(client, Cluster):
        return {"": client}
    cluster = client.connected()
    return {
        node.name: cluster.get_redis_connection(node)
        for node in sorted(cluster.get_primaries(), key=lambda node: node.name)
    }


def by_server(client: redis.Redis, keys: Sequence[bytes | str]) -> dict[redis.Redis, list[int]]:
    """Return a client of each server that holds some of ``keys``, with the numbers of those.

    Raises redis.RedisError and RedisClusterException.
    """
    if not isinstance(client, Cluster):
        return {client: [*range(len(keys))]}
    cluster, found = client.connected(), dict[redis.Redis, list[int]]()
    for number, key in enumerate(keys):
        node = cluster.get_node_from_key(key)
        found.setdefault(cluster.get_redis_connection(node), []).append(number)
    return found


def refresh(client: redis.Redis) -> None:
    """Ask a cluster again which server holds which keys; do nothing where there is none."""
    if isinstance(client, Cluster):
        client.refresh()


def ping(client: redis.Redis) -> None:
    """Ask each server whether it takes writes. Raises redis.RedisError, RedisClusterException."""
    try:
        for server in masters_of(client).values():
            if server.info("replication").get("role") == "slave":
                server.connection_pool.disconnect(inuse_connections=False)
                raise redis.ConnectionError(REPLICA)
    except redis.RedisError:
        refresh(client)  # or the next ping would go to a master that was replaced
        raise


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1_000 + int(micros) // 1_000


class _Nodes(NamedTuple):
    """What a URL of several servers says; :meth:`of` raises ValueError."""

    addresses: tuple[tuple[str, int], ...]
    options: dict[str, Any]
    path: tuple[str, ...]

    @classmethod
    def of(cls, url: str, default_port: int) -> _Nodes:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        addresses = []
        for each in hosts.split(","):
            one = urlsplit(f"//{each}")
            if not one.hostname:
                raise ValueError
            addresses.append((one.hostname, one.port or default_port))
        scheme = parts.scheme.partition("+")[0]
        query = f"?{parts.query}" if parts.query else ""
        options = dict(parse_url(f"{scheme}://{user}{at}host{query}"))
        for name in ("host", "port", "db"):
            options.pop(name, None)
        connection = options.pop("connection_class", Connection)
        of_redis = {name: each for name, each in options.items()
                    if not name.startswith("sentinel_")}  # fmt: skip
        _check_options(connection, of_redis)
        if issubclass(connection, SSLConnection):
            options["ssl"] = True
        return cls(tuple(addresses), options, tuple(filter(None, parts.path.split("/"))))


class Cluster:
    """A client of a cluster: redis-py's, made and connected at the first call."""

    def __init__(self, nodes: _Nodes, options: dict[str, Any]) -> None:
        if nodes.path not in {(), ("0",)}:
            raise InvalidSettings("redis_url", "names a database, and a cluster has one", _ACCEPTED)
        self._nodes = nodes
        self._options = options
        self._lock = Lock()
        self._client: RedisCluster | None = None
        self._new_nodes: dict[str, ClusterNode] = {}

    def connected(self) -> RedisCluster:
        """Return redis-py's client. Raises redis.RedisError and RedisClusterException."""
        with self._lock:
            # redis-py before 7 forgets nodes that do not answer; without any it never reconnects.
            if self._client is None or not self._client.nodes_manager.startup_nodes:
                masters = [ClusterNode(*each) for each in self._masters()]
                self._client = RedisCluster(
                    startup_nodes=masters,
                    retry=_retry(),
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
        """Return the addresses of the masters: ``on_connect`` may refuse the given ones.

        They may all be replicas by now.
        """
        options = {**self._options, "redis_connect_func": None, "retry": Retry(NoBackoff(), 0)}
        failure: redis.RedisError | None = None
        for host, port in self._nodes.addresses:
            try:
                with redis.Redis(host=host, port=port, **options) as client:
                    slots: Any = client.execute_command("CLUSTER SLOTS")
            except redis.RedisError as error:
                is_alone = "cluster support disabled" in str(error)
                failure = UnfitServer(_ALONE) if is_alone else error
                continue
            found = {((each[2][0] or b"").decode() or host, int(each[2][1])) for each in slots}
            if found:
                return sorted(found)
        raise failure or redis.exceptions.ClusterDownError("no hash slots are served")

    def refresh(self) -> None:
        self.connected().nodes_manager.initialize()

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            for node in self._new_nodes.values():
                if node.redis_connection is not None:
                    node.redis_connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connected(), name)


def _master_of(nodes: _Nodes, options: dict[str, Any]) -> redis.Redis:
    names_master = 1 <= len(nodes.path) <= 2  # noqa: PLR2004 - the master, and a database
    master, database = (*nodes.path, "0")[:2] if names_master else ("", "")
    if not database.isdigit():
        raise InvalidSettings("redis_url", "names no master, or no number of a database", _ACCEPTED)
    given = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    of_sentinels: dict[str, Any] = {name: value for name, value in options.items()
                    if name.startswith(("socket_", "ssl"))}  # fmt: skip
    at_once = {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(nodes.addresses, sentinel_kwargs=of_sentinels | given | at_once)
    options |= {"db": int(database), **repeated(_retry())}
    found: redis.Redis = sentinel.master_for(master, **options)
    return found


def _check_options(connection: type[Any], options: dict[str, Any]) -> None:
    """Raise ValueError for an option in a URL that redis-py's connections do not have."""
    try:
        connection(**options)  # it does not connect
    except TypeError as error:
        raise ValueError from error


def repeated(retry: Retry) -> dict[str, Any]:
    """Return the options of a client that repeats calls whose reply is lost.

    redis-py before 6 repeats a call only after the errors that ``retry_on_error`` names. It also
    connects anew then: a server that became a replica is left, and its name looked up again.
    """
    errors = [redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError]
    return {"retry": retry, "retry_on_error": errors}


def _retry() -> Retry:
    return Retry(FullJitterBackoff(base=0.01, cap=0.1), _RETRIES)
