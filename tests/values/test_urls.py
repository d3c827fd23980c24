"""What the URLs of servers that hosts and other programs give lead to."""

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
from dispatcher.store.database import Database
from dispatcher.store.engines import engine_of
from tests.support.nodes import Node
from tests.support.servers import PostgresServer

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
    sentinels = pool.sentinel_manager.sentinels
    ports = [sentinel.connection_pool.connection_kwargs["port"] for sentinel in sentinels]
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
    url = f"rediss://h/1?ssl_cert_reqs={spelling}&socket_timeout=3&client_name=shop"
    settings = Settings.load(redis_url=url)
    pool: Any = connect_redis(settings.redis_url).connection_pool
    assert pool.make_connection().cert_reqs == ssl.CERT_NONE
    broker: Any = Connection(settings.broker_url)
    assert (broker.hostname, broker.ssl) == ("h", {"ssl_cert_reqs": ssl.CERT_NONE})


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("redis_connect_func=hello", "'redis_connect_func' is not supported; accepted: a URL"),
        ("retry=3", "'retry' is not supported; accepted: a URL without it"),
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
    sentinels = pool.sentinel_manager.sentinels
    first, _ = (sentinel.connection_pool.connection_kwargs for sentinel in sentinels)
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


PG, MY = "postgresql://u:p@db.example/x", "mysql://u:p@db.example/x"


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        (f"{PG}\n", {}),
        (f"{PG}?pgbouncer=true&connection_limit=1", {"prepare_threshold": "none"}),
        (f"{PG}?prepare_threshold=0", {"prepare_threshold": "0"}),
        (f"{PG}?statement_cache_size=0", {"prepare_threshold": "none"}),
        (f"{PG}?schema=public&pool_timeout=5&sslmode=require", {"sslmode": "require"}),
        ("postgresql+psycopg2://u:p@db.example/x?ssl=true", {"sslmode": "require"}),
        ("postgresql+asyncpg://u:p@db.example/x?ssl=verify-full", {"sslmode": "verify-full"}),
        ("postgres://u:p@a:1,b:2/x?application_name=shop",
         {"host": "a,b", "port": "1,2", "application_name": "shop"}),
        (f"{MY}?reconnect=true&ssl-mode=REQUIRED", {"ssl": {"check_hostname": False}}),
        (f"{MY}?ssl-mode=VERIFY_CA&ssl-ca=/ca", {"ssl": {"ca": "/ca", "check_hostname": False}}),
        (f"{MY}?ssl-mode=VERIFY_IDENTITY&ssl-ca=/ca", {"ssl": {"ca": "/ca"}}),
        (f"{MY}?ssl_disabled=false&encoding=utf8", {}),
        ("mysql+aiomysql://u:p@db.example/x?ssl_mode=disabled", {"ssl_disabled": "true"}),
        ("sqlite+aiosqlite:////tmp/x.db?connection_limit=1&timeout=3", {"timeout": 3.0}),
    ],
)  # fmt: skip
def test_parameters_of_other_drivers_are_taken_over(url: str, parameters: dict[str, Any]) -> None:
    engine = engine_of(url)
    given = engine.url.get_dialect()().create_connect_args(engine.url)[1]
    told = {"host", "user", "password", "dbname", "database", "check_same_thread", "client_flag"}
    names = given.keys() - (told - parameters.keys())
    assert {name: given[name] for name in names} == parameters


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"{PG}?schema=app", "'schema' is set by table_schema"),
        (f"{PG}?currentSchema=app", "'currentSchema' is set by table_schema"),
        (f"{PG}?no_such=1", "'no_such' is not known"),
        (f"{PG}?connect_timeout=soon", "'connect_timeout' is no whole number"),
        (f"{PG}?prepare_threshold=often", "'prepare_threshold' is 'often'"),
        (f"{PG}?sslmode=require&sslmode=disable", "'sslmode' is given more than once"),
        (f"{MY}?useSSL=true", "'useSSL' is not known"),
        (f"{MY}?ssl-mode=STRICT", "'ssl-mode' is 'STRICT'"),
        (f"{MY}?ssl-mode=VERIFY_IDENTITY", "'ssl-mode' needs the file of an authority"),
        (f"{MY}?ssl_verify_cert=perhaps", "'ssl_verify_cert' is 'perhaps'"),
        ("mysql://u:p@a:1,b:2/x", "cannot be read"),
        ("postgresql://u:p@a:one,b:2/x", "cannot be read"),
        ("sqlite:////tmp/x.db?timeout=soon", "cannot be read"),
        ("sqlite:////tmp/x.db?no_such=1", "'no_such' is not known"),
    ],
)
def test_a_parameter_that_cannot_be_taken_over_is_named(url: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match="database_url") as refused:
        engine_of(url)
    assert says in str(refused.value)
    assert "u:p" not in str(refused.value)


def test_several_hosts_lead_to_the_first_that_answers(postgres: PostgresServer) -> None:
    folder = str(postgres.folder).replace("/", "%2F")
    url = f"postgres://postgres@/postgres?host=127.0.0.1:1&host={folder}:5432&pgbouncer=true\n"
    with closing(Database(url)) as database:
        line = database.run(lambda connection: connection.connection.driver_connection)
        assert getattr(line, "prepare_threshold", 0) is None
