"""Measure how a herd passes a limit: 50,000 messages due in the same second under 1,000 a second.

A real worker and a real beat, PostgreSQL, a transport that writes down when it is called. Counted:
sends a second while there is a backlog, the most in any second, how often a message was
snoozed (by a trigger in the database), and whether anything was sent twice or early.
"""

from __future__ import annotations

import statistics
import sys
import time
from bisect import bisect_left
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from delivery import BODY, channelled, count, dispatcher_command, prepare, running
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Settings
from dispatcher.embedded import embedded
from dispatcher.quota import Quota

CAP = 1_000
COUNT_SNOOZES = """
CREATE TABLE snoozes (message_id uuid);
CREATE FUNCTION note_snooze() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO snoozes VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER note_snooze AFTER UPDATE ON dispatcher_messages FOR EACH ROW
WHEN (OLD.status = 'sending' AND NEW.status = 'scheduled') EXECUTE FUNCTION note_snooze();
"""


def main(messages: int) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger", limits=[f"{CAP}/second"])
        settings = settings.model_copy(update={"quotas": (Quota(1_000, 1_000),)})
        measure(settings, path / "ledger", messages)


def measure(settings: Settings, ledger: Path, messages: int) -> None:
    prepare(settings)
    with psycopg.connect(settings.database_url, autocommit=True) as connection:
        connection.execute(COUNT_SNOOZES)
        with (
            Dispatcher(settings) as dispatcher,
            running(
                settings, ledger.parent, *(dispatcher_command(name) for name in ("worker", "beat"))
            ),
        ):
            at = datetime.now(UTC) + timedelta(seconds=10 + messages / 5_000)
            drafts = [
                Draft(channel="sms", recipient=f"to {number}", body=BODY, send_at=at)
                for number in range(messages)
            ]
            dispatcher.submit_many(drafts)
            if datetime.now(UTC) > at:
                raise SystemExit("submitting took longer than the messages had")
            deadline = time.monotonic() + 60 + 2 * messages / CAP
            while count(ledger) < messages and time.monotonic() < deadline:
                time.sleep(0.5)
        rows = connection.execute("SELECT count(*) FROM snoozes GROUP BY message_id").fetchall()
    report(ledger, at.timestamp(), messages, [many for (many,) in rows])


def report(ledger: Path, at: float, messages: int, snoozes: list[int]) -> None:
    lines = [line.split() for line in ledger.read_text().splitlines()]
    times = sorted(float(instant) for _, instant in lines)
    twice = sum(many > 1 for many in Counter(name for name, _ in lines).values())
    most = max(bisect_left(times, each + 1.0) - index for index, each in enumerate(times))
    steady = times[CAP : len(times) - CAP // 2]
    rate = (len(steady) - 1) / (steady[-1] - steady[0])
    per_message = sum(snoozes) / messages
    print(f"\n### A herd of {messages:,} under {CAP:,}/second, PostgreSQL, one worker\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | |")
    print("|---|---|")
    print(f"| sent | {len(times):,} of {messages:,} |")
    print(f"| in all | {times[-1] - at:.1f} s after they were due |")
    print(f"| rate while there was a backlog | {rate:.0f}/s, {rate / CAP:.1%} of the limit |")
    print(f"| most in any second | {most:,} |")
    print(f"| snoozes per message | {per_message:.2f}, at most {max(snoozes, default=0)} |")
    print(f"| sent twice, early | {twice}, {sum(each < at for each in times)} |")
    seconds = Counter(int(each - at) for each in times)
    print(f"| median of the seconds | {statistics.median(seconds.values()):.0f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
