"""Why a server keeps the dispatcher out is said in a sentence of its own, whatever the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.engine import make_url

from dispatcher import Settings, StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.messages import Messages
from tests.support import rows
from tests.support.examining import ERROR, doctor_for
from tests.support.mail import MailServer, certified
from tests.support.mariadb import MariaDBServer
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer, RedisServer

PASSWORD = "hunter2"  # noqa: S105 - looked for where it must not be
UNKNOWN = "no-such-host.invalid"
RULES = """
local all postgres trust
local all ada scram-sha-256
local all eve,nobody trust
"""

LOGIN = "refuses the user or the password"
DATABASE = "the server has no database 'nowhere'"
HOST = "the host name of "
TLS = "TLS with "
BROKER_TLS = "TLS with the broker"
WITHOUT_TLS = {"rediss": "redis", "amqps": "amqp"}
LACKS = "lacks the right to connect to the database"


@pytest.fixture(scope="module")
def at_postgresql() -> Iterator[dict[str, object]]:
    """Give a PostgreSQL with passwords, and its port: its rules are read when it starts."""
    with PostgresServer() as server:
        server.execute(f"CREATE ROLE ada LOGIN PASSWORD '{PASSWORD}'")
        server.execute("CREATE ROLE eve LOGIN")
        server.execute("CREATE ROLE ben LOGIN")
        server.execute("CREATE DATABASE closed")
        server.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
        (server.folder / "data" / "pg_hba.conf").write_text(RULES)
        server.execute("SELECT pg_reload_conf()")
        with Proxy(server.upstream) as proxy:
            yield {"port": proxy.port}


@pytest.fixture(scope="module")
def at_mysql(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, object]]:
    """Give a user with a password, and the file of an authority that has not signed."""
    name, (host, port) = f"clerk_{uuid4().hex[:8]}", mariadb.upstream
    mariadb.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
    authority = certified(tmp_path_factory.mktemp("ca"))[1]
    yield {"clerk": name, "at": f"{host}:{port}", "authority": authority}
    mariadb.execute(f"DROP USER '{name}'@'%'")


@pytest.fixture(scope="module")
def at_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Give the port of a server with a certificate that nobody here trusts."""
    context, _ = certified(tmp_path_factory.mktemp("tls"))
    with MailServer(security="tls", context=context) as server:
        yield {"tls": server.port}


@pytest.fixture
def at_redis(redis_server: RedisServer, at_tls: dict[str, object]) -> Iterator[dict[str, object]]:
    with Proxy(redis_server.socket) as proxy:
        yield at_tls | {"port": proxy.port}


@pytest.fixture
def at_amqp(rabbitmq: str, at_tls: dict[str, object]) -> dict[str, object]:
    assert rabbitmq
    return at_tls


CASES = [
    *(("database_url", *case) for case in (
        ("postgresql://ada:wrong@127.0.0.1:{port}/postgres", LOGIN, "correct them in {setting}"),
        ("postgresql://nobody@127.0.0.1:{port}/postgres", LOGIN, "correct them in {setting}"),
        ("postgresql://ada@127.0.0.1:{port}/postgres", LOGIN, "correct them in {setting}"),
        ("postgresql://eve@127.0.0.1:{port}/nowhere", DATABASE, "create it"),
        ("postgresql://eve@127.0.0.1:{port}/closed", LACKS, "grant it"),
        ("postgresql://ben@127.0.0.1:{port}/postgres",
         "no connection of this user from this host", "pg_hba"),
        ("postgresql://eve@127.0.0.1:{port}/postgres?sslmode=require", TLS, "parameters of TLS"),
        (f"postgresql://eve@{UNKNOWN}/postgres", HOST, "correct it in {setting}"),
        ("mysql://{clerk}:wrong@{at}/mysql", LOGIN, "correct them in {setting}"),
        ("mysql://root@{at}/nowhere", DATABASE, "create it"),
        ("mysql://{clerk}:hunter2@{at}/mysql", LACKS, "grant it"),
        ("mysql://root@{at}/mysql?ssl_ca={authority}", TLS, "parameters of TLS"),
        (f"mysql://root@{UNKNOWN}/mysql", HOST, "correct it in {setting}"),
    )),
    *((setting, *case) for setting in ("redis_url", "broker_url") for case in (
        ("redis://ada:wrong@127.0.0.1:{port}/0", "refused the credentials", "the user and the pas"),
        ("redis://127.0.0.1:{port}/999", "has no database of that number", "correct {setting}"),
        (f"redis://{UNKNOWN}/0", HOST + f"Redis at {UNKNOWN}:6379", "correct it in {setting}"),
        ("rediss://127.0.0.1:{port}/0", TLS + "Redis", "correct {setting}"),
        ("rediss://localhost:{tls}/0?ssl_cert_reqs=required", TLS + "Redis", "correct {setting}"),
    )),
    *(("broker_url", *case) for case in (
        ("amqp://guest:hunter2@127.0.0.1//", LOGIN, "correct them in {setting}"),
        ("amqp://guest:guest@127.0.0.1/nowhere", "has no such virtual host", "create it"),
        (f"amqp://{UNKNOWN}//", HOST + "the broker is unknown", "correct it in {setting}"),
        ("amqps://guest:guest@127.0.0.1:5672//", BROKER_TLS, "certificate of the broker"),
        ("amqps://guest:guest@localhost:{tls}//", BROKER_TLS, "certificate of the broker"),
    )),
]  # fmt: skip


@pytest.mark.server
@pytest.mark.parametrize(("setting", "url", "sentence", "remedy"), CASES)
def test_the_doctor_says_why_and_tells_no_password(
    request: pytest.FixtureRequest, setting: str, url: str, sentence: str, remedy: str
) -> None:
    scheme = url.partition(":")[0]
    place = request.getfixturevalue(f"at_{WITHOUT_TLS.get(scheme, scheme)}")
    changed: Any = {setting: url.format_map(place)}
    with doctor_for(Settings(**changed)) as doctor:
        server = {"database_url": "store", "redis_url": "redis", "broker_url": "broker"}[setting]
        [finding] = doctor.find([f"{server}.answers"])
    assert finding.level is ERROR
    assert sentence in finding.found
    assert remedy.format(setting=setting) in (finding.remedy or "")
    assert "start" not in (finding.remedy or "")
    assert PASSWORD not in str(finding)


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_right_on_a_table_that_is_missing_is_named(
    database_url: str, request: pytest.FixtureRequest
) -> None:
    url = make_url(database_url)
    name = f"reader_{uuid4().hex[:8]}"
    if url.get_backend_name() == "postgresql":
        run: Callable[[str], object] = request.getfixturevalue("postgres").execute
        run(f"CREATE ROLE {name} LOGIN")
    else:
        run = request.getfixturevalue("mariadb").execute
        run(f"CREATE USER {name}")
        run(f"GRANT SELECT ON {url.database}.dispatcher_pauses TO {name}")
    try:
        with (
            closing(Database(url.set(username=name).render_as_string(False))) as database,
            pytest.raises(StoreUnavailable, match="its user lacks a right") as caught,
        ):
            Messages(database).add(rows.addition(rows.a_message()))
        assert caught.value.remedy.startswith("give the user of database_url all rights")
    finally:
        run(f"DROP {'ROLE' if url.get_backend_name() == 'postgresql' else 'USER'} {name}")
