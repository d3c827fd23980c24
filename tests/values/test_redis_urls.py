"""What the URLs of several servers lead to."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kombu import Connection

from dispatcher import InvalidSettings, Settings
from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.client import connect_redis, now_ms
from dispatcher.redis.errors import translated
from tests.support.nodes import Node

AMQP = "amqp://rabbit.example//"


def test_one_server_has_one_shard_and_a_cluster_many() -> None:
    """One script judges a message on one server; on a cluster windows spread over its nodes."""
    assert Settings.load().shards == 1
    assert Settings.load(redis_url="redis+cluster://one.example", broker_url=AMQP).shards == 64


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
        "rediss://one?ssl_cert_reqs=never",
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="redis_url"):
        connect_redis(url)


@pytest.mark.parametrize("server", ["redis://h/1", "redis+cluster://h", "redis+sentinel://h/gate"])
def test_options_of_other_clients_do_not_change_what_replies_are(server: str) -> None:
    others = "decode_responses=true&encoding=latin-1&protocol=3"
    url = Settings.load(redis_url=f"{server}?{others}&client_name=shop", broker_url=AMQP).redis_url
    assert url == f"{server}?client_name=shop"
    connect_redis(url)


@pytest.mark.parametrize("spelling", ["CERT_NONE", "none"])
def test_a_url_with_options_of_tls_is_one_for_celery_too(spelling: str) -> None:
    given = f"rediss://h/1?ssl_cert_reqs={spelling}&socket_timeout=3&client_name=shop"
    settings = Settings.load(redis_url=given)
    pool: Any = connect_redis(settings.redis_url).connection_pool
    assert pool.make_connection().cert_reqs == ssl.CERT_NONE
    broker: Any = Connection(settings.broker_url)
    assert (broker.hostname, broker.ssl) == ("h", {"ssl_cert_reqs": ssl.CERT_NONE})


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("redis_connect_func=hello", "'redis_connect_func' cannot be taken over; accepted: a URL"),
        ("retry=3", "'retry' cannot be taken over; accepted: a URL without it"),
    ],
)
@pytest.mark.parametrize("server", ["rediss://h/1", "rediss+cluster://h"])
def test_an_option_that_would_break_each_call_is_refused_at_start(
    server: str, option: str, says: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(redis_url=f"{server}?{option}", broker_url=AMQP)
    assert str(refused.value).startswith(f"redis_url: its option {says}")


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
