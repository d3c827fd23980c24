"""Measure what noting a refusal costs, and what a campaign costs a submit."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from rounds import folder, measure, report
from submit import BODY, postgres

from dispatcher import Dispatcher, Draft, QuotaExceeded, Settings
from dispatcher.embedded import embedded
from dispatcher.store.migrate import migrate

CALLS = 150
MANY = 1_000


def main() -> None:
    with folder() as path, embedded(path / "redis") as settings, postgres() as url:
        compare(settings.model_copy(update={"database_url": url}))


def compare(settings: Settings) -> None:
    with Dispatcher(settings) as dispatcher, Dispatcher(settings) as without:
        migrate(dispatcher._app.database)
        without._app.reserver.refusals = None
        turns = count()
        at = datetime.now(UTC) + timedelta(days=2)
        dispatcher.submit(channel="memory", recipient="ada", body=BODY, send_at=at)

        def refused(by: Dispatcher) -> None:
            with suppress(QuotaExceeded):
                by.submit(channel="memory", recipient="ada", body=BODY, send_at=at)

        def accepted(**more: Any) -> None:
            name = f"r{next(turns)}"
            dispatcher.submit(channel="memory", recipient=name, body=BODY, send_at=at, **more)

        report(
            "one submit, PostgreSQL",
            measure(
                {
                    "refused, not noted": lambda: refused(without),
                    "refused": lambda: refused(dispatcher),
                    "accepted, without a campaign": accepted,
                    "accepted, with a campaign": lambda: accepted(campaign="summer"),
                },
                calls=CALLS,
            ),
            floor="refused, not noted",
        )
        drafts = [
            Draft(channel="memory", recipient="ada", body=BODY, send_at=at) for _ in range(MANY)
        ]
        report(
            f"{MANY:,} refused drafts in one call",
            measure(
                {
                    "not noted": lambda: without.submit_many(drafts),
                    "noted": lambda: dispatcher.submit_many(drafts),
                },
                calls=5,
                warm_up=2,
            ),
            floor="not noted",
        )


if __name__ == "__main__":
    main()
