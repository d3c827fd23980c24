"""What a database is asked, and how PostgreSQL reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, event, insert, text

from dispatcher.store.database import Database
from tests.support import rows
from tests.support.tables import attempts, messages


@contextmanager
def asked_of(target: Engine | type[Engine] | Connection) -> Iterator[list[tuple[str, Any]]]:
    """Give the statements that are run inside, with their values."""
    asked: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        asked.append((arguments[2], arguments[3]))

    event.listen(target, "before_cursor_execute", note)
    yield asked
    event.remove(target, "before_cursor_execute", note)


def plan_of(connection: Connection, statement: str, values: Any, *options: str) -> dict[str, Any]:
    """Return the plan of a statement with these values."""
    explain = f"EXPLAIN ({', '.join((*options, 'FORMAT JSON'))}) {statement}"
    [answer] = connection.exec_driver_sql(explain, values).scalar_one()
    plan: dict[str, Any] = answer["Plan"]
    return plan


def touched(plan: dict[str, Any]) -> int:
    """How many rows a plan looked at, those it dropped included."""
    dropped = sum(value for name, value in plan.items() if name.startswith("Rows Removed"))
    own = (
        (plan["Actual Rows"] + dropped) * plan["Actual Loops"] if "Scan" in plan["Node Type"] else 0
    )
    return int(own) + sum(touched(node) for node in plan.get("Plans", []))


def scans(plan: dict[str, Any]) -> list[str]:
    """What a plan reads from one end to the other."""
    own = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" else []
    return own + [name for node in plan.get("Plans", []) for name in scans(node)]


def waiting(database: Database) -> int:
    """Return how many statements wait for another transaction; on MariaDB, inserts of keys."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        if database.url.get_backend_name() == "postgresql"
        else "SELECT COUNT(*) FROM information_schema.processlist "
        "WHERE db = DATABASE() AND info LIKE 'INSERT INTO dispatcher_idempotency_keys%'"
    )
    return database.run(lambda connection: int(connection.scalar(text(query)) or 0))


def add_many(
    database: Database,
    instants: Iterable[datetime],
    *,
    status: str = "sent",
    tokens: int = 1,
    reserved: bool = True,
    **more: object,
) -> set[tuple[UUID, int]]:
    """Store a message of each instant, at which it ended unless it is scheduled, with attempts.

    Return the attempts.
    """
    values: list[dict[str, Any]] = []
    tried: list[dict[str, Any]] = []
    for instant in instants:
        message = rows.a_message(send_at=instant, attempt_count=tokens)
        known = {column.name: getattr(message, column.name, None) for column in messages.c}
        values.append({name: value for name, value in known.items() if value is not None} | {
            "enqueue_at": instant, "claim_token": tokens, "reserved": reserved, "status": status,
            "finished_at": None if status == "scheduled" else instant, **more,
        })  # fmt: skip
        tried += [
            {"message_id": message.id, "token": token, "started_at": instant,
             "finished_at": instant, "outcome": status if token == tokens else "temporary"}
            for token in range(1, tokens + 1)
        ]  # fmt: skip

    def work(connection: Connection) -> None:
        connection.execute(insert(messages), values)
        if tried:
            connection.execute(insert(attempts), tried)

    database.run(work)
    return {(attempt["message_id"], attempt["token"]) for attempt in tried}
