"""A caller that has rows and transactions of its own, on the dispatcher's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.orm import Session

from dispatcher import Message
from dispatcher.store.database import Database
from tests.support.house import FAR, House

Caller: TypeAlias = Session | Connection
Way = Literal["session", "connection"]
SOON = FAR + timedelta(minutes=1)
WAYS: tuple[Way, ...] = ("session", "connection")

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": 0.2},
    "postgresql": {"options": "-c lock_timeout=3s"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 3"},
}
metadata = MetaData()
orders = Table("orders", metadata, Column("number", Integer, primary_key=True))


@contextmanager
def callers_engine(
    database: Database, *, begins: bool = True, table: bool = True
) -> Iterator[Engine]:
    """Give an engine as a caller has one, with a table of the caller's unless ``table`` is False.

    On SQLite it writes BEGIN itself, as SQLAlchemy recommends, unless ``begins`` is False; then
    the driver does what it is used to.
    """
    kind = database.url.get_backend_name()
    sqlite = kind == "sqlite"
    engine = create_engine(database.url, connect_args=_ARGUMENTS[kind])
    if sqlite and begins:
        event.listen(engine, "connect", _without_isolation_level)
        event.listen(engine, "begin", _begin)
    if table:
        metadata.create_all(engine)
    yield engine
    engine.dispose()


@contextmanager
def calling(engine: Engine, way: Way) -> Iterator[Caller]:
    with Session(engine) if way == "session" else engine.connect() as caller:
        yield caller


def order(caller: Caller, number: int = 1) -> None:
    caller.execute(insert(orders).values(number=number))


def ordered(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(select(orders.c.number).order_by(orders.c.number)))


def remind(house: House, caller: Caller, recipient: str = "ada", **asked: Any) -> Message:
    return house.submit(recipient, session=caller, **{"send_at": SOON} | asked)


def queued(house: House) -> int:
    return house.broker.llen("dispatcher.memory")


def _without_isolation_level(driver: Any, record: object) -> None:
    del record
    driver.isolation_level = None


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
