"""The client of the Redis of the settings: one server, a master of sentinels, or a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from dispatcher.errors import InvalidSettings
from dispatcher.redis.cluster import Cluster, masters_of, refresh, short_retry
from dispatcher.redis.errors import REPLICA

_SECONDS = 1.0
_PORT, _SENTINEL_PORT = 6379, 26379
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
            client = redis.Redis.from_url(url, **options, **repeated(short_retry()))
            pool = client.connection_pool
            _check_options(pool.connection_class, pool.connection_kwargs)
            return client
        nodes = _Nodes.of(url, _PORT if several[2] == "cluster" else _SENTINEL_PORT)
    except ValueError:
        raise InvalidSettings("redis_url", "cannot be read", _ACCEPTED) from None
    options |= nodes.options
    if several[2] == "cluster":
        if nodes.path not in {(), ("0",)}:
            raise InvalidSettings("redis_url", "names a database, and a cluster has one", _ACCEPTED)
        # redis-py sets up connections to nodes of a cluster itself.
        options["redis_connect_func"] = on_connect
        return cast("redis.Redis", Cluster(nodes.addresses, options))
    return _master_of(nodes, options)


def after_set_up(on_connect: OnConnect) -> OnConnect:
    def connected(connection: Any) -> None:
        connection.on_connect()
        on_connect(connection)

    return connected


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
    addresses: tuple[tuple[str, int], ...]
    options: dict[str, Any]
    path: tuple[str, ...]

    @classmethod
    def of(cls, url: str, default_port: int) -> _Nodes:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        addresses = []
        for host in hosts.split(","):
            address = urlsplit(f"//{host}")
            if not address.hostname:
                raise ValueError
            addresses.append((address.hostname, address.port or default_port))
        scheme = parts.scheme.partition("+")[0]
        query = f"?{parts.query}" if parts.query else ""
        options = dict(parse_url(f"{scheme}://{user}{at}host{query}"))
        for name in ("host", "port", "db"):
            options.pop(name, None)
        connection = options.pop("connection_class", Connection)
        of_redis = {name: value for name, value in options.items()
                    if not name.startswith("sentinel_")}  # fmt: skip
        _check_options(connection, of_redis)
        if issubclass(connection, SSLConnection):
            options["ssl"] = True
        return cls(tuple(addresses), options, tuple(filter(None, parts.path.split("/"))))


def _master_of(nodes: _Nodes, options: dict[str, Any]) -> redis.Redis:
    names_master = 1 <= len(nodes.path) <= 2  # noqa: PLR2004 - the master, and a database
    master, database = (*nodes.path, "0")[:2] if names_master else ("", "")
    if not database.isdigit():
        raise InvalidSettings("redis_url", "names no master, or no number of a database", _ACCEPTED)
    access = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    of_sentinels: dict[str, Any] = {name: value for name, value in options.items()
                    if name.startswith(("socket_", "ssl"))}  # fmt: skip
    at_once = {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(nodes.addresses, sentinel_kwargs=of_sentinels | access | at_once)
    options |= {"db": int(database), **repeated(short_retry())}
    client: redis.Redis = sentinel.master_for(master, **options)
    return client


def _check_options(connection: type[Any], options: dict[str, Any]) -> None:
    """Raise ValueError for an option in a URL that redis-py's connections do not take."""
    try:
        connection(**options)  # it does not connect
    except (TypeError, redis.RedisError) as error:
        raise ValueError from error


def repeated(retry: Retry) -> dict[str, Any]:
    """Return the options of a client that repeats calls whose reply is lost.

    redis-py before 6 repeats a call only after the errors that ``retry_on_error`` names. It also
    connects anew then: a server that became a replica is left, and its name looked up again.
    """
    errors = [redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError]
    return {"retry": retry, "retry_on_error": errors}
