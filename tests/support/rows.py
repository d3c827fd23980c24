"""Messages to store, and rows to look at and to move in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import func, insert, select, update

from dispatcher import testing
from dispatcher.message import Message, Status, dump_json, new_id
from dispatcher.selection import Selection
from dispatcher.store.claims import Claim, Claims, Success
from dispatcher.store.database import Database
from dispatcher.store.listing import Listing
from dispatcher.store.maintenance import Due, StoreMaintenance
from dispatcher.store.messages import Messages
from dispatcher.store.schema import Addition
from tests.support.tables import attempts, messages

TTL = timedelta(seconds=30)
SOON = timedelta(seconds=5)
AGES = timedelta(days=365)


def now() -> datetime:
    """Return the present to the millisecond, the precision every database keeps."""
    instant = datetime.now(UTC)
    return instant.replace(microsecond=instant.microsecond // 1_000 * 1_000)


def a_message(**changes: Any) -> Message:
    send_at = changes.get("send_at", now() + timedelta(hours=1))
    message_id = changes.get("id") or new_id()
    values: dict[str, Any] = {
        "id": message_id,
        "channel": "sms",
        "recipient": f"to {message_id}",
        "scope": f"to {message_id}",
        "body": {"text": "Grüße 👋", "n": [1, 2.5, None, True]},
        "send_at": send_at,
        "next_attempt_at": send_at,
        "status": Status.SCHEDULED,
        "attempt_count": 0,
        "max_attempts": 3,
        "created_at": now(),
    }
    return testing.a_message(**values | changes)


@lru_cache(maxsize=4)
def messages_in(database: Database) -> Messages:
    """Return the messages of a database; to build them takes longer than to add one."""
    return Messages(database)


@lru_cache(maxsize=4)
def claims_in(database: Database) -> Claims:
    return Claims(database, ttl=TTL)


def add(database: Database, **changes: Any) -> Message:
    return messages_in(database).add(addition(a_message(**changes)))


def addition(
    message: Message, *, fingerprint: str | None = None, status_url: str | None = None
) -> Addition:
    body_json = dump_json(message.body)
    return Addition(message, message.send_at, fingerprint, body_json, status_url)


def add_due(database: Database, **changes: Any) -> Message:
    return add(database, send_at=now() - timedelta(minutes=1), **changes)


def claimed(database: Database, **changes: Any) -> Claim:
    message = add_due(database, **changes)
    (claim,) = claims_in(database).claim([message.id])
    return claim


def ended(database: Database, ago: timedelta, **changes: Any) -> Message:
    claim = claimed(database, **changes)
    claims_in(database).record([Success(claim, None)], [], enqueue_in=SOON)
    at = now() - ago
    change(database, claim.message.id, finished_at=at)
    mine = update(attempts).where(attempts.c.message_id == claim.message.id)
    database.run(lambda connection: connection.execute(mine.values(finished_at=at)))
    return claim.message


def row(database: Database, message_id: UUID) -> Any:
    query = select(messages).where(messages.c.id == message_id)
    return database.run(lambda connection: connection.execute(query).one())


def count(database: Database) -> int:
    query = select(func.count()).select_from(messages)
    return database.run(lambda connection: connection.execute(query).scalar_one())


def listed(database: Database, *, limit: int = 1_000, **filters: Any) -> list[Message]:
    listing = Listing(database, late=SOON, put_off=TTL)
    return [*listing.page(Selection(**filters), after=None, limit=limit).messages]


def change(database: Database, message_id: UUID, **columns: Any) -> None:
    """Write columns of a message as no part of the dispatcher does; the CHECKs still hold."""
    statement = update(messages).where(messages.c.id == message_id).values(**columns)
    database.run(lambda connection: connection.execute(statement))


def insert_attempt(database: Database, **columns: Any) -> None:
    database.run(lambda connection: connection.execute(insert(attempts).values(**columns)))


def age(database: Database, message_id: UUID, by: timedelta = timedelta(minutes=10)) -> None:
    """Make everything that is known of a message so much older, as if that time had passed."""
    before = row(database, message_id)
    names = [
        *("send_at", "next_attempt_at", "enqueue_at", "expires_at"),
        *("claim_expires_at", "created_at", "finished_at"),
    ]
    moved = {
        name: getattr(before, name) - by for name in names if getattr(before, name) is not None
    }
    change(database, message_id, **moved)


def take_due(maintenance: StoreMaintenance, *, limit: int, grace: timedelta) -> list[Due]:
    return maintenance.take_due(maintenance.due(limit=limit), grace=grace)
