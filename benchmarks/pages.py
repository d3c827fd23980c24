"""Measure how long each page takes to answer, with many messages stored on PostgreSQL.

The page runs in this process, behind no server, so that the figures are those of its reads and its
templates. The first visit of a process to a figure of all messages may be told that it is being
counted. The messages are those of a shop: three channels, hours with more and with fewer, a
mailing of 20,000 at one instant, a week that is booked, a month that has ended with failures and
cancellations among it, and campaigns. Each page is visited in turns with the others.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import psycopg
from delivery import BODY, channelled, prepare
from growth import make_day
from rounds import facts, folder
from starlette.testclient import TestClient
from submit import postgres

from dispatcher import Dispatcher, Settings
from dispatcher.embedded import embedded
from dispatcher.message import dump_json
from dispatcher.web import Loopback, Right, page

MESSAGES = 1_000_000
ROUNDS = 40
DAYS = 30
MAILING = 20_000
AT_ONCE = 100_000
FILL = """
WITH made AS (
  SELECT n, now() + %(span)s * power(random(), %(near)s) + interval '1 minute' AS at
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
OK, COUNTING = 200, 503
CHANNELS = {name: {"transport": "memory", "limits": ("100/second",)}
            for name in ("sms", "mail", "push", "letter")}  # fmt: skip


def main(messages: int) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        given = channelled(servers, url, path / "ledger").model_dump()
        settings = Settings(**(given | {"channels": CHANNELS}))
        prepare(settings)
        with psycopg.connect(url, autocommit=True) as connection:
            store(connection, messages)
        with Dispatcher(settings) as dispatcher:
            report(measured(dispatcher), messages)


def store(connection: psycopg.Connection[Any], messages: int) -> None:
    """Store messages: seven tenths have ended, the rest is booked."""
    for ago in range(1, DAYS + 1):
        make_day(connection, ago)
    booked = messages * 3 // 10 - MAILING
    fill(connection, messages * 7 // 10, span=-timedelta(days=DAYS), near=1, ended=True)
    fill(connection, booked, span=timedelta(days=10), near=2, ended=False)
    given = {"body": dump_json(BODY)}
    connection.execute(MAIL, given | {"many": MAILING})
    connection.execute(HOLD)
    connection.execute("VACUUM ANALYZE")


def fill(
    connection: psycopg.Connection[Any], many: int, *, span: timedelta, near: int, ended: bool
) -> None:
    """Store messages with times between now and ``span`` from it, more of them ``near`` to now."""
    for first in range(0, many, AT_ONCE):
        given = {"body": dump_json(BODY), "many": min(AT_ONCE, many - first), "span": span,
                 "near": near, "ended": ended}  # fmt: skip
        connection.execute(FILL, given)


def addresses(dispatcher: Dispatcher) -> dict[str, str]:
    """Return the visited pages by what they show."""
    message = next(iter(dispatcher.list(limit=1)))
    now = datetime.now(UTC)
    day = (f"from={now - timedelta(days=15):%Y-%m-%dT%H:%M}"
           f"&until={now - timedelta(days=14):%Y-%m-%dT%H:%M}&zone=UTC")  # fmt: skip
    lists = {
        "all messages": "",
        **{f"messages {each}": f"status={each}" for each in
           ("scheduled", "sent", "failed", "expired", "cancelled")},
        "messages of a day two weeks ago": day,
        "failed messages of that day": f"{day}&status=failed",
        "messages of a channel without any": "channel=letter",
        "messages of a recipient": f"recipient={message.recipient}",
        "messages of a campaign": "campaign=mailing",
        "messages by the beginning of a key": "key_prefix=order-",
        "overdue messages": "overdue=on",
    }  # fmt: skip
    return {
        "overview": "/",
        **{name: f"/messages?{query}" for name, query in lists.items()},
        "a message": f"/messages/{message.id}",
        "held messages": "/held",
        "bulk: all scheduled": "/messages/bulk?do=cancel",
        "bulk: failed": "/messages/bulk?do=retry",
        "bulk: none match": "/messages/bulk?do=cancel&channel=letter",
        "calendar": f"/calendar?recipient={message.recipient}&channel={message.channel}",
        "load of a day": "/load?within=day",
        "load of a week": "/load?within=week",
        "refusals": "/refusals",
        "campaign": "/campaigns?campaign=mailing",
        "suppressions": "/suppressions",
        "pauses": "/pauses",
    }


def measured(dispatcher: Dispatcher) -> Mapping[str, list[float]]:
    """Return the ms of each visit, by page."""
    application = cast("Any", page(dispatcher, access=Loopback(rights=Right)))
    took: dict[str, list[float]] = {}
    with TestClient(application, base_url="http://localhost", client=("127.0.0.1", 1)) as client:
        for _ in range(ROUNDS):
            for name, path in addresses(dispatcher).items():
                milliseconds, answer = timed(partial(client.get, path))
                if answer.status_code != 200:
                    raise SystemExit(f"{path}: {answer.status_code}")
                took.setdefault(name, []).append(milliseconds)
    return took


def timed(act: Any) -> tuple[float, Any]:
    """Return how many ms something takes, and what it answers."""
    began = time.perf_counter()
    answer = act()
    return (time.perf_counter() - began) * 1_000, answer


def report(took: Mapping[str, list[float]], messages: int) -> None:
    """Print a table in Markdown."""
    print(f"\n### Milliseconds of a page, {messages:,} messages, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}; {ROUNDS} visits of each, in turns\n")
    print("| page | first visit | p50 | p95 | longest later one |")
    print("|---|---|---|---|---|")
    for name, each in took.items():
        first, *later = each
        p95 = statistics.quantiles(later, n=20)[-1]
        print(f"| {name} | {first:.0f} | {statistics.median(later):.0f} | {p95:.0f} "
              f"| {max(later):.0f} |")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
