"""What the URLs that hosts and other programs give lead to."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from dispatcher import InvalidSettings
from dispatcher.store.database import Database
from dispatcher.store.engines import engine_of
from tests.support.servers import PostgresServer

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
        (f"{MY}?ssl-mode=VERIFY_IDENTITY", "'ssl-mode' verifies by an authority"),
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
