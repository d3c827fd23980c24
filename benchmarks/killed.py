"""Count what a killed worker leaves of unknown outcome, and measure what the send logs cost.

A worker delivers what is due at once; each send takes 20 ms, by 16 senders. It is killed at a
random moment and started again, KILLS times; the sweep runs beside it. The provider writes down
what reaches it before it answers.

Then a process delivers what is due at once, in groups of 50, to a provider that takes no time, in
pairs of 1,000 messages: with send logs, and with logs that note nothing. The groups of a pair take
turns. There is no broker in it, so the share of the send logs is above that of a worker.

    killed.py [kills, default 20] [pairs, default 15]
"""

from __future__ import annotations

import gc
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

from delivery import BODY, channelled, dispatcher_command, prepare
from rounds import facts, folder
from sqlalchemy import select
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Outcome, Settings
from dispatcher.app import App
from dispatcher.delivery.send_log import ClaimLog, SendLogs
from dispatcher.embedded import embedded

KILLS, PAIRS = 20, 15
MESSAGES = 4_000
BLOCK, GROUP = 1_000, 50
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


class NoSendLogs(SendLogs):
    """Notes nothing: its claims have no files."""

    def open(self, message_ids: Sequence[UUID]) -> ClaimLog:
        """Return a log without a file."""
        del message_ids
        return ClaimLog(uuid4())


def main(kills: int, pairs: int) -> None:
    if kills:
        count_unknown(kills)
    if pairs:
        compare(pairs)


def count_unknown(kills: int) -> None:
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


def compare(pairs: int) -> None:
    """Deliver with and without send logs in turns, in one process."""
    walls: list[list[float]] = [[], []]
    used: list[list[float]] = [[], []]
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger", transport="delivery:Ledger")
        prepare(settings)
        ids = due(settings, (2 + 2 * pairs) * BLOCK)
        parts = App(settings.model_copy(update={"data_dir": path / "data"}))
        logs = (parts.send_logs, NoSendLogs(path))
        for number in range(-1, pairs):  # the first pair warms up
            gc.collect()
            wall, cpu = [0.0, 0.0], [0.0, 0.0]
            for turn in range(2 * BLOCK // GROUP):
                which = (turn + turn // 2) % 2  # each is as often before as behind the other
                vars(parts.delivery)["send_logs"] = logs[which]
                group = [ids.pop() for _ in range(GROUP)]
                began, used_before = time.perf_counter(), time.process_time()
                if parts.delivery.deliver(group) != GROUP:
                    raise RuntimeError("a message was not sent")
                cpu[which] += time.process_time() - used_before
                wall[which] += time.perf_counter() - began
            if number >= 0:
                for which in (0, 1):
                    used[which].append(cpu[which])
                    walls[which].append(wall[which])
        parts.close()
    print(f"\n### Send logs: {pairs} pairs of {BLOCK:,} messages, groups of {GROUP}, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}; load {os.getloadavg()[0]:.0f}\n")
    print("| seconds for 1,000 messages | with | without | ratio, pair by pair | least–most |")
    print("|---|---|---|---|---|")
    for name, (ours, none) in {"of the processor": used, "in all": walls}.items():
        ratios = sorted(one / other for one, other in zip(ours, none, strict=True))
        print(
            f"| {name} | {statistics.median(ours):.3f} | {statistics.median(none):.3f} "
            f"| {statistics.median(ratios):.3f} | {ratios[0]:.2f}–{ratios[-1]:.2f} |"
        )


def due(settings: Settings, many: int) -> list[UUID]:
    """Submit messages and let them be due, however long that took; return their ids."""
    at = datetime.now(UTC) + timedelta(hours=1)
    drafts = [
        Draft(channel="sms", recipient=f"to {number}", body=BODY, send_at=at)
        for number in range(many)
    ]
    with Dispatcher(settings) as dispatcher:
        found = [each.id for each in dispatcher.submit_many(drafts) if isinstance(each, Message)]
        messages = dispatcher._app.database.tables.messages
        now = datetime.now(UTC) - timedelta(seconds=1)
        change = messages.update().values(send_at=now, next_attempt_at=now)
        dispatcher._app.database.run(lambda connection: connection.execute(change))
    if len(found) != many:
        raise RuntimeError("a message was refused")
    return found


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*given, *(KILLS, PAIRS)[len(given) :])
