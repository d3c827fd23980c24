"""What cannot be joined is refused by name, before anything is reserved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dispatcher import InvalidDraft
from tests.support.callers import WAYS, callers_engine, calling, order, ordered, orders, remind
from tests.support.house import House
from tests.support.house_fixtures import on_postgresql, on_sqlite
from tests.support.mariadb import MariaDBServer
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer
from tests.support.tables import migrate_at

DRIVERS = {"mysql": "pymysql", "postg": "psycopg"}
AsyncSession = type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})
"""What SQLAlchemy's own looks like from outside; importing that needs greenlet."""


def refuses(house: House, session: object, *, problem: str, accepted: str = "") -> None:
    before = house.snapshot()
    with pytest.raises(InvalidDraft) as caught:
        remind(house, session)  # type: ignore[arg-type]  # what is refused has other types
    assert caught.value.field == "session"
    assert problem in caught.value.problem
    assert accepted in caught.value.accepted
    assert house.snapshot() == before


@on_sqlite
def test_another_type_is_refused_with_advice(house: House, engine: Engine) -> None:
    either = "a Session or a Connection"
    refuses(house, "session", problem="a str", accepted=either)
    refuses(house, engine, problem="an Engine", accepted=either)
    scoped = scoped_session(sessionmaker(engine))
    refuses(house, scoped, problem="a scoped_session", accepted="returns its Session when called")
    refuses(house, AsyncSession(), problem="an AsyncSession", accepted="await dispatcher.asubmit(")
    remind(house, scoped())
    scoped.commit()
    scoped.remove()
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_a_connection_that_commits_by_itself_is_refused(house: House, engine: Engine) -> None:
    says = {"problem": "commits each statement by itself", "accepted": "AUTOCOMMIT"}
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, Session(alone) as session:
        refuses(house, connection, **says)
        refuses(house, session, **says)
    always = create_engine(house.database.url, isolation_level="AUTOCOMMIT")
    with always.connect() as connection:
        refuses(house, connection, **says)
    always.dispose()


@on_postgresql
def test_another_kind_of_database_is_refused(house: House) -> None:
    other = create_engine("sqlite://")
    with other.connect() as connection:
        refuses(house, connection, problem="is on sqlite", accepted="postgresql")
    with Session(other) as session:
        refuses(house, session, problem="is on sqlite", accepted="postgresql")
    other.dispose()


def copies(house: House, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give URLs of databases of the same kind and with the same tables that are others."""
    if house.url.startswith("sqlite"):
        yield f"sqlite:///{shutil.copy(house.database.url.database or '', tmp_path / 'other.db')}"
        yield "sqlite://"
        return
    if house.url.startswith("mysql"):
        local: MariaDBServer = request.getfixturevalue("mariadb")
        yield local.url(local.create_database())
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.url(server.create_database())
    migrate_at(url)
    yield url


def refuses_other(house: House, url: str) -> None:
    engine = create_engine(url.replace("sql://", f"sql+{DRIVERS.get(url[:5])}://"))
    for way in WAYS:
        with calling(engine, way) as caller:
            refuses(house, caller, problem="is on another database")
            caller.rollback()
    engine.dispose()


@pytest.mark.every_database
def test_another_database_of_the_same_kind_is_refused(
    house: House, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for url in copies(house, tmp_path, request):
        refuses_other(house, url)


@pytest.mark.long
@on_postgresql
def test_a_database_of_the_same_name_on_another_server_is_refused(house: House) -> None:
    name = house.database.url.database or ""
    with PostgresServer() as other:
        other.execute(f'CREATE DATABASE "{name}"')
        refuses_other(house, other.url(name))


def other_names(house: House, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give engines that reach the same database by another file, address or dialect."""
    name = house.database.url.database or ""
    if house.url.startswith("sqlite"):
        (tmp_path / "link.db").symlink_to(name)
        yield create_engine(f"sqlite:///{tmp_path / 'link.db'}")
        attached = create_engine("sqlite://")
        attach = f"ATTACH '{name}' AS ours"
        event.listen(attached, "connect", lambda driver, _: driver.execute(attach))
        yield attached
        return
    kind, dialects = "postgres", ["postgresql+psycopg"]
    if house.url.startswith("mysql"):
        kind, dialects = "mariadb", ["mysql+pymysql", "mariadb+pymysql"]
    server = request.getfixturevalue(kind)
    with Proxy(server.upstream) as proxy:
        where = server.url(name, port=proxy.port).partition(":")[2]
        yield from (create_engine(f"{dialect}:{where}") for dialect in dialects)


@pytest.mark.every_database
def test_the_same_database_by_another_name_is_joined(
    house: House, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for number, engine in enumerate(other_names(house, tmp_path, request)):
        with engine.connect() as connection:
            message = remind(house, connection, f"r{number}")
            connection.commit()
        assert house.again(message) == message
        engine.dispose()
    assert house.reservations() == house.all_members() != {}


@on_postgresql
def test_a_server_that_does_not_say_which_it_is_is_joined(
    house: House, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "dispatcher.store.engines.postgresql.PostgreSQLEngine.whereabouts"
    for number, says in enumerate((None, "SELECT not_allowed()")):
        if says is not None:
            monkeypatch.setattr(query, text(says))
        with callers_engine(house.database, table=False) as other, other.connect() as connection:
            order(connection, number)
            remind(house, connection, f"r{number}")
            connection.commit()
    assert ordered(engine) == [0, 1]
    assert house.reservations() == house.all_members() != {}


@on_sqlite
def test_a_session_without_a_transaction_is_refused(house: House, engine: Engine) -> None:
    with engine.connect() as connection:
        pass
    refuses(house, connection, problem="is closed", accepted="open")
    with engine.connect() as connection:
        connection.invalidate()
        refuses(house, connection, problem="is closed", accepted="open")
    refuses(house, Session(), problem="bound to no database", accepted="single bind")
    refuses(house, Session(engine, autobegin=False), problem="InvalidRequestError")


def test_a_session_that_must_be_rolled_back_is_refused(house: House, engine: Engine) -> None:
    class Order:
        """A row of the caller's."""

    from sqlalchemy.orm import registry  # noqa: PLC0415 - only here

    registry().map_imperatively(Order, orders)
    with Session(engine) as session:
        order(session)
        session.add(Order(number=1))  # type: ignore[call-arg]  # mapped above
        with pytest.raises(IntegrityError):
            session.flush()
        refuses(house, session, problem="PendingRollbackError", accepted="roll it back")
        session.rollback()
        remind(house, session)
        session.commit()
    assert house.reservations() == house.all_members()
