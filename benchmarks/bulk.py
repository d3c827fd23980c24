"""Measure what a message costs when 20,000 are submitted in batches of 1,000, on PostgreSQL.

The floor is the least that could do the work: for each batch one pipeline of empty scripts with
the keys and arguments of a reservation, one raw COPY of the same rows, and one pipelined publish
of the ids in groups of 50. The peer is procrastinate's ``batch_defer``, which judges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import procrastinate
import psycopg
from rounds import folder, measure, report
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.message import dump_json, new_id
from dispatcher.store.migrate import migrate
from dispatcher.times.send_time import to_ms

MESSAGES, BATCH, GROUP = 20_000, 1_000, 50
BODY = {"text": "Your appointment is tomorrow at 9."}
NAMES = (
    "id", "channel", "recipient", "scope", "body", "send_at", "next_attempt_at", "enqueue_at",
    "status", "attempt_count", "max_attempts", "claim_token", "reserved", "created_at",
)  # fmt: skip


def main() -> None:
    with folder() as path, embedded(path / "redis") as settings, postgres() as url:
        compare(settings.model_copy(update={"database_url": url}))


def compare(settings: Settings) -> None:
    with Dispatcher(settings) as dispatcher, peer(settings.database_url) as batch_defer:
        parts = App(settings)
        migrate(parts.database)
        parts.reconciler.reconcile(settle=timedelta(0))
        at = datetime.now(UTC) + timedelta(days=2)
        turns = count()

        def ours() -> None:
            turn = next(turns)
            results = dispatcher.submit_many(
                [
                    Draft(channel="memory", recipient=f"{turn}-{n}", body=BODY, send_at=at)
                    for n in range(MESSAGES)
                ]
            )
            assert all(isinstance(each, Message) for each in results)

        def theirs() -> None:
            turn = next(turns)
            for start in range(0, MESSAGES, BATCH):
                batch_defer(at, [f"{turn}-{n}" for n in range(start, start + BATCH)])

        floor = floor_chain(parts, at)

        def least() -> None:
            turn = next(turns)
            for start in range(0, MESSAGES, BATCH):
                floor([f"{turn}-{n}" for n in range(start, start + BATCH)])

        alternatives = {
            "floor: pipelined empty scripts + raw COPY + pipelined publish": least,
            "submit_many": ours,
            "procrastinate batch_defer": theirs,
        }
        figures = measure(alternatives, calls=1, rounds=7, warm_up=1)
        each = {name: [us / MESSAGES for us in values] for name, values in figures.items()}
        title = f"{MESSAGES:,} messages in batches of {BATCH:,}, per message, PostgreSQL (fsync on)"
        report(title, each, floor=next(iter(each)))
        parts.close()


def floor_chain(parts: App, at: datetime) -> Callable[[list[str]], None]:
    """Return a function that does the least for one batch of recipients."""
    empty = parts.redis.register_script("return 1")
    keys = parts.fence.keys[0]
    url = parts.database.url.set(drivername="postgresql")
    connection = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
    statement = f"COPY dispatcher_messages ({', '.join(NAMES)}) FROM STDIN"
    body, instant, asked = dump_json(BODY), at.isoformat(), to_ms(at)
    rest = ("scheduled", "0", "5", "0", "t", instant)

    def submit(recipients: list[str]) -> None:
        ids = [new_id() for _ in recipients]
        pipeline = parts.redis.pipeline(transaction=False)
        for message_id, recipient in zip(ids, recipients, strict=True):
            names = [keys.window(recipient), keys.pending, keys.epoch]
            empty(keys=names, args=(message_id.bytes, asked, asked, 1, 2, 3), client=pipeline)
        pipeline.execute()
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(
                "".join(
                    "\t".join(
                        (message_id.hex, "memory", recipient, recipient, body, instant, instant,
                         instant, *rest)
                    ) + "\n"
                    for message_id, recipient in zip(ids, recipients, strict=True)
                )
            )  # fmt: skip
        pipeline = parts.redis.pipeline(transaction=False)
        for start in range(0, len(ids), GROUP):
            task = json.dumps([str(each) for each in ids[start : start + GROUP]])
            pipeline.lpush("floor", task)
        pipeline.execute()

    return submit


@contextmanager
def peer(url: str) -> Iterator[Callable[[datetime, list[str]], object]]:
    """Yield a function by which procrastinate defers a batch on the same database."""
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))

    @app.task(name="deliver")
    def deliver(recipient: str, text: str) -> None:
        del recipient, text

    with app.open():
        app.schema_manager.apply_schema()

        def batch_defer(at: datetime, recipients: list[str]) -> None:
            jobs: list[dict[str, Any]] = [{"recipient": each, **BODY} for each in recipients]
            deliver.configure(schedule_at=at).batch_defer(*jobs)

        yield batch_defer


if __name__ == "__main__":
    main()
