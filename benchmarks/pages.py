"""Measure how long each page takes to answer, with many messages stored on PostgreSQL.

The page runs in this process, behind no server, so that the figures are those of its reads and its
templates. So do the calls of the HTTP API that list and count messages. The messages are those of a
shop: three channels, hours with more and with fewer, a mailing of 20,000 at one instant, ten days
that are booked, a month that has ended with failures and cancellations among it, and campaigns.
Three tenths are booked, 300,000 at most. Each page is visited in turns with the others, and on each
of the databases that the arguments give the sizes of.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self, cast

import psycopg
from delivery import BODY, channelled, prepare
from growth import Server, make_day
from rounds import facts, folder
from sqlalchemy import Connection, Engine, ExceptionContext, event
from starlette.testclient import TestClient

from dispatcher import Dispatcher, Draft, Settings
from dispatcher.embedded import embedded
from dispatcher.message import dump_json
from dispatcher.web import Caller, Loopback, Right, api, page

MESSAGES = 1_000_000
ROUNDS = 40
DAYS = 30
BOOKED, MAILING = 300_000, 20_000
AT_ONCE, WRITERS = 100_000, 4
FILL = """
WITH made AS (
  SELECT n, now() + %(start)s + %(span)s * power(random(), %(near)s) AS at
  FROM generate_series(1, %(many)s) AS n
), told AS (
  SELECT made.*, random() AS luck, 'customer-' || (random() * 200000)::int AS name,
    (ARRAY['sms', 'mail', 'mail', 'mail', 'push', 'push'])[1 + (random() * 5)::int] AS channel,
    CASE WHEN random() < 0.2 THEN 'week-' || date_part('week', at)::int END AS campaign,
    least(now(), at - interval '3 days' * random()) - interval '1 hour' * random() AS booked
  FROM made
), named AS (
  SELECT uuidv7(booked - now()) AS id, told.*, CASE WHEN NOT %(ended)s THEN 'scheduled'
    WHEN luck < 0.96 THEN 'sent' WHEN luck < 0.98 THEN 'cancelled' WHEN luck < 0.99 THEN 'expired'
    ELSE 'failed' END AS status
  FROM told
), tried AS (
  INSERT INTO dispatcher_attempts (message_id, token, started_at, finished_at, outcome)
  SELECT id, 1, at, at, CASE status WHEN 'sent' THEN 'sent' ELSE 'permanent' END
  FROM named WHERE status IN ('sent', 'failed')
)
INSERT INTO dispatcher_messages (id, channel, recipient, scope, body, send_at,
  next_attempt_at, enqueue_at, status, attempt_count, max_attempts, claim_token, reserved,
  created_at, finished_at, campaign)
SELECT id, channel, name, name, %(body)s::json, at, at, at - interval '30 seconds', status,
  (status IN ('sent', 'failed'))::int, 5, (status IN ('sent', 'failed'))::int,
  status NOT IN ('cancelled', 'expired'), booked, CASE WHEN %(ended)s THEN at END, campaign
FROM named
"""
MAIL = """
INSERT INTO dispatcher_messages (id, channel, recipient, scope, body, send_at,
  next_attempt_at, enqueue_at, status, attempt_count, max_attempts, claim_token, reserved,
  created_at, campaign)
SELECT uuidv7(), 'mail', 'reader-' || n, 'reader-' || n, %(body)s::json, at, at,
  at - interval '30 seconds', 'scheduled', 0, 5, 0, true, now(), 'mailing'
FROM generate_series(1, %(many)s) AS n, (SELECT now() + interval '5 hours' AS at) AS due
"""
HOLD = """
UPDATE dispatcher_messages SET status = 'held', attempt_count = 1 WHERE id IN
  (SELECT id FROM dispatcher_messages WHERE status = 'scheduled' LIMIT 50)
"""
CHANNELS = {name: {"transport": "memory", "limits": ("100/second",)}
            for name in ("sms", "mail", "push", "letter")}  # fmt: skip


def main(sizes: Sequence[int]) -> None:
    with (
        folder() as path,
        embedded(path / "redis") as servers,
        Server.running(path, "128MB") as server,
        ExitStack() as stack,
    ):
        databases = {}
        for messages in sizes:
            name = f"rows_{messages}"
            own = channelled(servers, server.create(name), path / "ledger").model_dump()
            changes = {"channels": CHANNELS, "namespace": f"rows-{messages}"}
            settings = Settings(**(own | changes))
            prepare(settings)
            store(settings.database_url, messages)
            databases[name] = stack.enter_context(Visits.of(settings, messages))
        longest = time_statements()
        for _ in range(ROUNDS):
            for each in databases.values():
                each.visit()
        for name, each in databases.items():
            each.report(longest[name])


def store(url: str, messages: int) -> None:
    """Store messages: three tenths are booked, 300,000 at most, the others have ended."""
    booked, day = min(BOOKED, messages * 3 // 10), timedelta(days=1)
    with psycopg.connect(url, autocommit=True) as connection:
        for ago in range(1, DAYS + 1):
            make_day(connection, ago)
    ended = [
        partial(fill, url, (messages - booked) // DAYS, start=-ago * day, span=day, ended=True)
        for ago in range(1, DAYS + 1)
    ]
    soon, span = timedelta(minutes=1), 10 * day
    scheduled = partial(fill, url, booked - MAILING, start=soon, span=span, ended=False, near=2)
    with ThreadPoolExecutor(WRITERS) as pool:
        for stored in [pool.submit(each) for each in (scheduled, *ended)]:
            stored.result()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(MAIL, {"body": dump_json(BODY), "many": MAILING})
        connection.execute(HOLD)
        connection.execute("VACUUM ANALYZE")


def fill(
    url: str, many: int, *, start: timedelta, span: timedelta, ended: bool, near: int = 1
) -> None:
    """Store messages with times from ``start`` after now on, more of them ``near`` to it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET work_mem = '256MB'")
        for first in range(0, many, AT_ONCE):
            given = {"body": dump_json(BODY), "many": min(AT_ONCE, many - first), "start": start,
                     "span": span, "near": near, "ended": ended}  # fmt: skip
            connection.execute(FILL, given)


class Visits:
    """The ms of each visit to the pages and to the API of one database, by what it shows."""

    def __init__(
        self, dispatcher: Dispatcher, messages: int, clients: Sequence[TestClient]
    ) -> None:
        self._dispatcher = dispatcher
        self._messages = messages
        self._pages, self._api = clients
        self._took: dict[str, list[float]] = {}

    @classmethod
    @contextmanager
    def of(cls, settings: Settings, messages: int) -> Iterator[Self]:
        """Yield what visits a page and an API of these settings."""
        with Dispatcher(settings) as dispatcher, ExitStack() as stack:
            refuse(dispatcher)
            applications = (
                page(dispatcher, access=Loopback(rights=Right)),
                api(dispatcher, auth=lambda _: Caller(name="bench", rights=frozenset(Right))),
            )
            here: dict[str, Any] = {"base_url": "http://localhost", "client": ("127.0.0.1", 1)}
            clients = [
                stack.enter_context(TestClient(cast("Any", each), **here)) for each in applications
            ]
            yield cls(dispatcher, messages, clients)

    def visit(self) -> None:
        """Visit each page once."""
        pages, calls = addresses(self._dispatcher)
        for client, paths in ((self._pages, pages), (self._api, calls)):
            for name, path in paths.items():
                milliseconds, answer = timed(partial(client.get, path))
                if answer.status_code == 503 and name not in self._took:
                    continue
                if answer.status_code != 200:
                    raise SystemExit(f"{path}: {answer.status_code}")
                self._took.setdefault(name, []).append(milliseconds)

    def report(self, longest: Mapping[str, float]) -> None:
        """Print a table in Markdown, and the statements that took longest."""
        print(f"\n### Milliseconds of a page, {self._messages:,} messages, PostgreSQL\n")
        print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}; {ROUNDS} visits of each, in turns\n")
        print("| page | first visit | p50 | p95 | longest later one |")
        print("|---|---|---|---|---|")
        for name, each in self._took.items():
            first, *later = each
            p95 = statistics.quantiles(later, n=20)[-1]
            print(f"| {name} | {first:.0f} | {statistics.median(later):.0f} | {p95:.0f} "
                  f"| {max(later):.0f} |")  # fmt: skip
        print("\nThe longest statements:\n")
        for text in sorted(longest, key=lambda text: -longest[text])[:3]:
            shown = " ".join(text.split())
            print(f"- {longest[text]:.0f} ms: `… {shown[shown.find(' FROM ') :]}`")


def refuse(dispatcher: Dispatcher) -> None:
    """Fill the log of refusals: one message is accepted, 1,000 are refused for its sake."""
    at = datetime.now(UTC) + timedelta(days=2)
    draft = Draft(channel="letter", recipient="often", body=BODY, send_at=at)
    for _ in range(11):
        dispatcher.submit_many([draft] * 100)


def time_statements() -> Mapping[str, dict[str, float]]:
    """Return the most ms that each statement takes from now on, by database and text."""
    longest: defaultdict[str, dict[str, float]] = defaultdict(dict)

    @event.listens_for(Engine, "before_cursor_execute")
    def begin(connection: Connection, *_: object) -> None:
        connection.info["began"] = time.perf_counter()

    def note(connection: Connection, text: str) -> None:
        some = longest[str(connection.engine.url.database)]
        took = (time.perf_counter() - connection.info["began"]) * 1_000
        some[text] = max(took, some.get(text, 0.0))

    @event.listens_for(Engine, "after_cursor_execute")
    def end(connection: Connection, _: object, text: str, *__: object) -> None:
        note(connection, text)

    @event.listens_for(Engine, "handle_error")
    def fail(context: ExceptionContext) -> None:
        if context.connection is not None and context.statement is not None:
            note(context.connection, context.statement)

    return longest


def addresses(dispatcher: Dispatcher) -> tuple[dict[str, str], dict[str, str]]:
    """Return the visited pages and the calls of the API, by what they show."""
    message = next(iter(dispatcher.list(status="sent", limit=1)))
    now = datetime.now(UTC)
    week = f"week-{(now - timedelta(days=7)).isocalendar().week}"
    day = (f"from={now - timedelta(days=15):%Y-%m-%dT%H:%M}"
           f"&until={now - timedelta(days=14):%Y-%m-%dT%H:%M}&zone=UTC")  # fmt: skip
    whose = f"recipient={message.recipient}&channel={message.channel}"
    refused = f"{now + timedelta(days=2):%Y-%m-%dT%H:%M}"
    lists = {
        "all messages": "",
        **{f"messages {each}": f"status={each}" for each in
           ("scheduled", "sent", "failed", "expired", "cancelled")},
        "messages of a day two weeks ago": day,
        "failed messages of that day": f"{day}&status=failed",
        "messages of a channel without any": "channel=letter",
        "messages of a recipient": f"recipient={message.recipient}",
        "messages of a campaign": "campaign=mailing",
        "messages of a week's campaign": f"campaign={week}",
        "messages by the beginning of a key": "key_prefix=order-",
        "overdue messages": "overdue=on",
    }  # fmt: skip
    pages = {
        "overview": "/",
        **{name: f"/messages?{query}" for name, query in lists.items()},
        "a message": f"/messages/{message.id}",
        "held messages": "/held",
        "bulk: all scheduled": "/messages/bulk?do=cancel",
        "bulk: failed": "/messages/bulk?do=retry",
        "bulk: none match": "/messages/bulk?do=cancel&channel=letter",
        "calendar": f"/calendar?{whose}",
        "calendar of four weeks": f"/calendar?{whose}&view=weeks",
        "a question of the calendar": f"/calendar?{whose}&at=10:40",
        "a question that is refused": f"/calendar?recipient=often&channel=letter&at={refused}",
        "load of a day": "/load?within=day",
        "load of a week": "/load?within=week",
        "refusals": "/refusals",
        "1,000 refusals": "/refusals",
        "campaigns": "/campaigns",
        "campaign": "/campaigns?campaign=mailing",
        "a week's campaign": f"/campaigns?campaign={week}",
        "suppressions": "/suppressions",
        "pauses": "/pauses",
    }
    calls = {
        "API: all messages": "messages",
        "API: sent messages": "messages?status=sent",
        "API: failed messages": "messages?status=failed",
        "API: messages of a recipient": f"messages?recipient={message.recipient}",
        "API: counts of a recipient": f"counts?recipient={message.recipient}",
        "API: counts of a campaign": "counts?campaign=mailing",
    }
    return pages, {name: f"/v1/{path}" for name, path in calls.items()}


def timed(act: Any) -> tuple[float, Any]:
    """Return how many ms something takes, and what it answers."""
    began = time.perf_counter()
    answer = act()
    return (time.perf_counter() - began) * 1_000, answer


if __name__ == "__main__":
    main([*map(int, sys.argv[1:])] or [MESSAGES])
