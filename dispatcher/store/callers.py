"""Sessions and connections of callers: what a message can join, and what it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError, UnboundExecutionError

from dispatcher.errors import InvalidDraft, kind_of
from dispatcher.store.columns import MYSQL
from dispatcher.store.database import unavailable

if TYPE_CHECKING:
    from sqlalchemy.orm import Session  # who passes one has imported it; others need not

Joinable: TypeAlias = "Session | Connection"
"""What is in a transaction that messages can join."""

_ACCEPTED = "a Session or a Connection of SQLAlchemy"
_IS_STRICT = "dispatcher.is_strict"


def connection_of(session: object) -> Connection:
    """Return the connection that ``session`` works on. Raises InvalidDraft, StoreUnavailable."""
    if isinstance(session, Connection):
        if session.closed or session.invalidated:
            raise InvalidDraft("session", "is closed", "an open one")
        return session
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415 - slow, and rarely needed

    if isinstance(session, Session):
        try:
            return session.connection()
        except UnboundExecutionError:
            problem = "is bound to no database, or to several"
            raise InvalidDraft(
                "session", problem, "one with a single bind, or its Connection"
            ) from None
        except InvalidRequestError as error:
            raise unusable(error) from None
        except SQLAlchemyError as error:
            raise unavailable(error) from None
    accepted = _ACCEPTED
    if isinstance(session, scoped_session):
        accepted += ": of a scoped_session, what calling it returns"
    elif any(
        kind.__module__.startswith("sqlalchemy.ext.asyncio") for kind in type(session).__mro__
    ):
        accepted += (
            "; with an asynchronous one: "
            "await session.run_sync(lambda session: dispatcher.submit(…, session=session))"
        )
    raise InvalidDraft("session", kind_of(session), accepted)


def unusable(error: InvalidRequestError) -> InvalidDraft:
    """Say that the transaction cannot go on."""
    problem = f"has no transaction that could be used ({type(error).__name__})"
    return InvalidDraft("session", problem, "an active one; after an error, roll it back first")


def commits_by_itself(connection: Connection) -> bool:
    """Whether each statement is committed as soon as it is done."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        # Those who write BEGIN themselves, as SQLAlchemy recommends, have no isolation level.
        alone = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return alone and not driver.in_transaction
    proxied = connection.connection.dbapi_connection
    return proxied is not None and connection.dialect.detect_autocommit_setting(proxied)


def cuts_values(connection: Connection) -> bool:
    """Whether what does not fit into a column would be cut to fit, as MySQL can be told to do."""
    if connection.dialect.name not in MYSQL:
        return False
    if not connection.info.get(_IS_STRICT):
        mode: str = connection.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar_one()
        connection.info[_IS_STRICT] = "STRICT_" in mode
    return not connection.info[_IS_STRICT]
