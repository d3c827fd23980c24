"""What the URLs of several servers lead to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dispatcher import InvalidSettings, Settings
from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.client import Cluster, connect_redis, now_ms
from dispatcher.redis.errors import translated
from tests.support.nodes import Node


def test_one_server_has_one_shard_and_a_cluster_many() -> None:
    """One script judges a message on one server; on a cluster windows spread over its nodes."""
    assert Settings.load().shards == 1
    amqp = "amqp://rabbit.example//"
    assert Settings.load(redis_url="redis+cluster://one.example", broker_url=amqp).shards == 64


@pytest.mark.parametrize(
    ("path", "database"), [("gate", 0), ("gate/0", 0), ("gate/3", 3), ("gate/3/", 3)]
)
def test_a_url_of_sentinels_names_a_master_and_perhaps_a_database(path: str, database: int) -> None:
    client = connect_redis(f"redis+sentinel://one:26380,two/{path}")
    pool: Any = client.connection_pool
    assert pool.service_name == "gate"
    assert pool.connection_kwargs["db"] == database
    ports = [
        each.connection_pool.connection_kwargs["port"] for each in pool.sentinel_manager.sentinels
    ]
    assert ports == [26380, 26379]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one",
        "redis+sentinel://one/",
        "redis+sentinel://one/gate/first",
        "redis+sentinel://one/gate/0/0",
        "redis+sentinel://one,/gate",
        "redis+sentinel://one:port/gate",
        "redis+cluster://one/1",
        "redis+cluster://",
        "redis+cluster://one,,two",
        "redis+cluster://one?no_such_option=1",
        "redis+sentinel://one/gate?no_such_option=1",
        "redis://one?no_such_option=1",
        "redis://one?retry=3",
        "rediss://one?ssl_cert_reqs=perhaps",
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="redis_url"):
        connect_redis(url)


@pytest.mark.parametrize(
    "scheme", ["redis://one", "redis+cluster://one", "redis+sentinel://one/gate"]
)
def test_options_that_are_for_another_program_are_taken_over_or_named(scheme: str) -> None:
    """A host hands out one URL; ours are the answers as bytes, and redis-py's words."""
    asked = "decode_responses=true&encoding=latin1&protocol=3&health_check_interval=7"
    client = connect_redis(f"{scheme}?{asked}")
    kwargs: Any = client._options if isinstance(client, Cluster) else client.get_connection_kwargs()
    assert kwargs["health_check_interval"] == 7
    assert kwargs["protocol"] == 2
    assert not {"decode_responses", "encoding"} & kwargs.keys() or not kwargs["decode_responses"]
    secure = scheme.replace("redis", "rediss", 1)
    for spelling in ("CERT_NONE", "none", "CERT_REQUIRED"):
        connect_redis(f"{secure}?ssl_cert_reqs={spelling}")
    with pytest.raises(InvalidSettings, match="redis_url: its client_name has a blank"):
        connect_redis(f"{scheme}?client_name=my%20shop")


def test_hosts_may_be_addresses_of_ipv6_and_sentinels_have_passwords_of_their_own() -> None:
    client = connect_redis("rediss+sentinel://u:p@[::1]:26380,two/gate?sentinel_password=s")
    pool: Any = client.connection_pool
    first, _ = (each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels)
    assert (first["host"], first["port"], first["password"]) == ("::1", 26380, "s")
    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == ("u", "p")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster://{}", "no Redis Cluster: write redis://"),
        ("redis+sentinel://{}/gate", "no sentinel"),
        ("redis+sentinel://127.0.0.1:1/gate", "sentinels do not answer"),
    ],
)
def test_a_server_of_another_kind_is_named(url: str, reason: str) -> None:
    with (
        Node() as server,
        translated_to(reason),
        closing(connect_redis(url.format(server.address))) as client,
    ):
        now_ms(client)


@contextmanager
def translated_to(reason: str) -> Iterator[None]:
    with pytest.raises(ReservationsUnavailable, match=reason), translated(ReservationsUnavailable):
        yield
