"""Why a server lets the dispatcher not in is said in a sentence of its own, whatever the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
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


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[PostgresServer, Proxy]]:
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
            yield server, proxy


@pytest.fixture(scope="module")
def clerk(mariadb: MariaDBServer) -> Iterator[str]:
    name = f"clerk_{uuid4().hex[:8]}"
    mariadb.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
    yield name
    mariadb.execute(f"DROP USER '{name}'@'%'")


@pytest.fixture(scope="module")
def port_of_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Give the port of a server with a certificate that nobody here trusts."""
    context, _ = certified(tmp_path_factory.mktemp("tls"))
    with MailServer(security="tls", context=context) as server:
        yield server.port


def says(setting: str, url: str, sentence: str, remedy: str) -> None:
    """Check what the doctor says of a server at this URL, and that it tells no password."""
    changed: Any = {setting: url}
    with doctor_for(Settings(**changed)) as doctor:
        server = {"database_url": "store", "redis_url": "redis", "broker_url": "broker"}[setting]
        [finding] = doctor.find([f"{server}.answers"])
    assert finding.level is ERROR
    assert sentence in finding.found
    assert remedy in (finding.remedy or "")
    assert "start" not in (finding.remedy or "")
    assert PASSWORD not in str(finding)


@pytest.mark.parametrize(
    ("url", "sentence", "remedy"),
    [
        ("ada:wrong@127.0.0.1:{port}/postgres", LOGIN, "correct them in database_url"),
        ("nobody@127.0.0.1:{port}/postgres", LOGIN, "correct them in database_url"),
        ("ada@127.0.0.1:{port}/postgres", LOGIN, "correct them in database_url"),
        ("eve@127.0.0.1:{port}/nowhere", DATABASE, "create it"),
        ("eve@127.0.0.1:{port}/closed", "lacks the right to connect to the database", "grant it"),
        ("ben@127.0.0.1:{port}/postgres", "no connection of this user from this host", "pg_hba"),
        ("eve@127.0.0.1:{port}/postgres?sslmode=require", TLS, "parameters of TLS"),
        ("eve@" + UNKNOWN + "/postgres", HOST, "correct it in database_url"),
    ],
)
def test_postgresql(
    guarded: tuple[PostgresServer, Proxy], url: str, sentence: str, remedy: str
) -> None:
    chosen = f"postgresql://{url.format(port=guarded[1].port)}"
    says("database_url", chosen, sentence, remedy)


@pytest.mark.parametrize(
    ("url", "sentence", "remedy"),
    [
        ("{clerk}:wrong@{at}/mysql", LOGIN, "correct them in database_url"),
        ("root@{at}/nowhere", DATABASE, "create it"),
        ("{clerk}:hunter2@{at}/mysql", "lacks the right to connect to the database", "grant it"),
        ("root@{at}/mysql?ssl_ca={authority}", TLS, "parameters of TLS"),
        ("root@" + UNKNOWN + "/mysql", HOST, "correct it in database_url"),
    ],
)
def test_mariadb(  # noqa: PLR0917 - one table, one test
    mariadb: MariaDBServer,
    clerk: str,
    tmp_path: Path,
    url: str,
    sentence: str,
    remedy: str,
) -> None:
    at = "{}:{}".format(*mariadb.upstream)
    chosen = url.format(clerk=clerk, at=at, authority=certified(tmp_path)[1])
    says("database_url", f"mysql://{chosen}", sentence, remedy)


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


@pytest.mark.parametrize("setting", ["redis_url", "broker_url"])
@pytest.mark.parametrize(
    ("url", "sentence", "remedy"),
    [
        ("redis://ada:wrong@127.0.0.1:{port}/0", "refused the credentials", "the user and the pas"),
        ("redis://127.0.0.1:{port}/999", "has no database of that number", "correct {setting}"),
        ("redis://" + UNKNOWN + "/0", HOST + f"Redis at {UNKNOWN}:6379", "correct it in {setting}"),
        ("rediss://127.0.0.1:{port}/0", TLS + "Redis", "correct {setting}"),
        (
            "rediss://localhost:{tls}/0?ssl_cert_reqs=required",
            TLS + "Redis",
            "correct {setting}",
        ),
    ],
)
def test_redis(  # noqa: PLR0917 - one table, one test
    redis_server: RedisServer,
    port_of_tls: int,
    setting: str,
    url: str,
    sentence: str,
    remedy: str,
) -> None:
    with Proxy(redis_server.socket) as proxy:
        chosen = url.format(port=proxy.port, tls=port_of_tls)
        says(setting, chosen, sentence, remedy.format(setting=setting))


@pytest.mark.parametrize(
    ("url", "sentence", "remedy"),
    [
        ("amqp://guest:hunter2@127.0.0.1//", LOGIN, "correct them in broker_url"),
        ("amqp://guest:guest@127.0.0.1/nowhere", "has no such virtual host", "create it"),
        ("amqp://" + UNKNOWN + "//", HOST + "the broker is unknown", "correct it in broker_url"),
        ("amqps://guest:guest@127.0.0.1:5672//", TLS + "the broker", "certificate of the broker"),
        ("amqps://guest:guest@localhost:{tls}//", TLS + "the broker", "certificate of the broker"),
    ],
)
def test_rabbitmq(rabbitmq: str, port_of_tls: int, url: str, sentence: str, remedy: str) -> None:
    says("broker_url", url.format(tls=port_of_tls), sentence, remedy)
