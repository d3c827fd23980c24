"""Measure what it costs to move, cancel and retry accepted messages, one by one and many at once.

Each message is one recipient's, under the quotas of the defaults. Moves go an hour later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from uuid import UUID

from rounds import folder
from sqlalchemy import update
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.store.migrate import migrate

MANY, ALONE, ROUNDS = 5_000, 200, 3
BODY = {"text": "Your appointment is tomorrow at 9."}
HOUR = timedelta(hours=1)


def main() -> None:
    with folder() as path, embedded(path / "redis") as settings, postgres() as url:
        for name, each in (("PostgreSQL", url), ("SQLite", f"sqlite:///{Path(path) / 'm.db'}")):
            compare(name, settings.model_copy(update={"database_url": each}))


def compare(name: str, settings: Settings) -> None:
    parts = App(settings)
    migrate(parts.database)
    parts.reconciler.reconcile(settle=timedelta(0))
    at = datetime.now(UTC) + timedelta(days=2)
    with Dispatcher(settings) as dispatcher:
        drafts = [
            Draft(channel="memory", recipient=f"{name} {n}", body=BODY, send_at=at)
            for n in range(MANY)
        ]
        accepted = dispatcher.submit_many(drafts)
        ids = [each.id for each in accepted if isinstance(each, Message)]
        assert len(ids) == MANY

        def fail() -> None:
            messages = parts.database.tables.messages
            ends = {"status": "failed", "finished_at": datetime.now(UTC)}
            parts.database.run(lambda connection: connection.execute(update(messages).values(ends)))

        print(f"\n{name}: a second, best of {ROUNDS}")
        tell("reschedule", ids[:ALONE], one_by_one(lambda n: dispatcher.reschedule(n, later=HOUR)))
        tell("reschedule_many", ids, lambda some: dispatcher.reschedule_many(some, later=HOUR))
        tell("retry", ids[:ALONE], one_by_one(dispatcher.retry), before=fail)
        tell("retry_many", ids, dispatcher.retry_many, before=fail)
    parts.close()


def one_by_one(act: Callable[[UUID], object]) -> Callable[[Sequence[UUID]], Sequence[object]]:
    return lambda ids: [act(each) for each in ids]


def tell(
    what: str,
    ids: Sequence[UUID],
    act: Callable[[Sequence[UUID]], Sequence[object]],
    before: Callable[[], None] = lambda: None,
) -> None:
    best = 0.0
    for _ in range(ROUNDS):
        before()
        begun = perf_counter()
        answers = act(ids)
        best = max(best, len(ids) / (perf_counter() - begun))
        if not all(isinstance(each, Message) for each in answers):
            sys.exit(f"{what} was refused")
    print(f"{what:20} {best:8,.0f}")


if __name__ == "__main__":
    main()
