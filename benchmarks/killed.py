"""Count what a killed worker leaves of unknown outcome, and how much of that its provider has seen.

A worker delivers what is due at once; each send takes 20 ms, by 16 senders. It is killed at a
random moment and started again, KILLS times; the sweep runs beside it. The provider writes down
what reaches it before it answers.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from delivery import BODY, channelled, dispatcher_command, prepare
from rounds import facts, folder
from sqlalchemy import select
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Outcome, Settings
from dispatcher.embedded import embedded

KILLS = 20
MESSAGES = 4_000
SEND_SECONDS = 0.02


class Provider:
    """A transport that writes down each try when it arrives, and takes its time."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def send(self, message: Message) -> str | None:
        """Write down that this try of ``message`` has arrived, then wait."""
        os.write(self._file, f"{message.id} {message.attempt_count}\n".encode())
        time.sleep(SEND_SECONDS)
        return None


def main(kills: int) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        ledger = path / "ledger"
        settings = channelled(servers, url, ledger, transport="killed:Provider", max_attempts=100)
        settings = settings.model_copy(update={"data_dir": path / "data"})
        prepare(settings)
        with Dispatcher(settings) as dispatcher:
            submitted(dispatcher)
            for _ in range(kills):
                kill_one(dispatcher, settings, ledger, path)
            settled(dispatcher)
            report(dispatcher, ledger, kills)


def submitted(dispatcher: Dispatcher) -> None:
    at = datetime.now(UTC) + timedelta(seconds=MESSAGES / 60)
    drafts = [
        Draft(channel="sms", recipient=f"to {number}", body=BODY, send_at=at)
        for number in range(MESSAGES)
    ]
    answers = dispatcher.submit_many(drafts)
    if not all(isinstance(each, Message) for each in answers):
        raise SystemExit("submitting took longer than the messages had")
    while datetime.now(UTC) < at:
        time.sleep(0.1)


def kill_one(dispatcher: Dispatcher, settings: Settings, ledger: Path, path: Path) -> None:
    """Start a worker, kill it while it sends, and let the sweep settle what it left."""
    before = len(lines(ledger))
    environment = os.environ | settings.environment()
    environment |= {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{Path(__file__).parent}"}
    environment["DISPATCHER_DATA_DIR"] = str(settings.data_dir)
    with (path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            dispatcher_command("worker", "--concurrency=16", "--no-doctor"),
            cwd=path, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(lines(ledger)) == before and time.monotonic() < deadline:
        dispatcher._app.sweep.enqueue_due()
        time.sleep(0.02)
    time.sleep(random.uniform(0.0, 0.3))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    dispatcher._app.sweep.rescue()
    dispatcher._app.sweep.enqueue_due()


def settled(dispatcher: Dispatcher) -> None:
    """End the claims of what is left."""
    now = datetime.now(UTC) - timedelta(minutes=1)
    messages = dispatcher._app.database.tables.messages
    claimed = messages.c.status == "sending"
    change = messages.update().where(claimed).values(claim_expires_at=now)
    dispatcher._app.database.run(lambda connection: connection.execute(change))
    dispatcher._app.sweep.rescue()


def lines(ledger: Path) -> list[tuple[UUID, int]]:
    """Return what has arrived: messages with the numbers of their tries."""
    text = ledger.read_text() if ledger.exists() else ""
    found = (line.split() for line in text.splitlines())
    return [(UUID(name), int(number)) for name, number in found]


def report(dispatcher: Dispatcher, ledger: Path, kills: int) -> None:
    attempts = dispatcher._app.database.tables.attempts
    query = select(attempts.c.message_id, attempts.c.outcome).order_by(
        attempts.c.message_id, attempts.c.token
    )
    rows = dispatcher._app.database.run(lambda connection: connection.execute(query).all())
    tries: defaultdict[UUID, list[str]] = defaultdict(list)
    for message_id, outcome in rows:
        tries[message_id].append(outcome)
    unknown = {
        (message_id, number)
        for message_id, outcomes in tries.items()
        for number, outcome in enumerate(outcomes, start=1)
        if outcome == Outcome.UNKNOWN
    }
    arrived = set(lines(ledger))
    print(f"\n### {kills} kills of a worker that sends, sends of 20 ms, 16 senders\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| arrived | of unknown outcome | not arrived of these |")
    print("|---|---|---|")
    print(f"| {len(arrived):,} | {len(unknown):,} | {len(unknown - arrived):,} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS)
