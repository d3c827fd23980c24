"""Measure how late messages go out: 1,000 a second for 20 seconds, each send takes 20 ms.

A real worker and a real beat, PostgreSQL, limits and full records. Lateness is the instant at which
the transport is called less the promised one.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from delivery import (
    BODY,
    Ledger,
    channelled,
    count,
    cpu_seconds,
    dispatcher_command,
    prepare,
    running,
)
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.embedded import embedded

RATE, SECONDS = 1_000, 20
SEND_SECONDS = 0.02


class Slow(Ledger):
    """A ledger at which each send takes its time."""

    def send(self, message: Message) -> str | None:
        """Write down that ``message`` was sent, and wait for the answer."""
        super().send(message)
        time.sleep(SEND_SECONDS)
        return None


def main(rate: int) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        ledger = path / "ledger"
        settings = channelled(servers, url, ledger, transport="lateness:Slow", senders=64)
        prepare(settings)
        commands = (dispatcher_command(name) for name in ("worker", "beat"))
        with running(settings, path, *commands) as (pid, *_):
            measure(settings, ledger, rate, pid)


def measure(settings: Settings, ledger: Path, rate: int, pid: int) -> None:
    messages = rate * SECONDS
    start = datetime.now(UTC) + timedelta(seconds=6 + messages / 4_000)
    drafts = [
        Draft(channel="sms", recipient=f"to {number}", body=BODY,
              send_at=start + timedelta(seconds=number / rate))
        for number in range(messages)
    ]  # fmt: skip
    with Dispatcher(settings) as dispatcher:
        answers = dispatcher.submit_many(drafts)
    due = {each.id: each.send_at for each in answers if isinstance(each, Message)}
    if len(due) != messages or datetime.now(UTC) > start:
        raise SystemExit("submitting took longer than the messages had")
    while datetime.now(UTC) < start:
        time.sleep(0.05)
    before = cpu_seconds(pid)
    deadline = time.monotonic() + SECONDS + 30
    while count(ledger) < messages and time.monotonic() < deadline:
        time.sleep(0.2)
    report(ledger, due, rate, (cpu_seconds(pid) - before) / messages * 1_000)


def report(ledger: Path, due: dict[UUID, datetime], rate: int, cpu: float) -> None:
    lines = [line.split() for line in ledger.read_text().splitlines()]
    late = sorted((float(at) - due[UUID(name)].timestamp()) * 1_000 for name, at in lines)
    cut = statistics.quantiles(late, n=100)
    print(f"\n### {rate:,}/s over {SECONDS} s, sends of 20 ms, PostgreSQL, one worker\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| sent | early | p50 | p99 | longest | worker CPU s per 1,000 |")
    print("|---|---|---|---|---|---|")
    early = sum(each < 0 for each in late)
    print(f"| {len(late):,} of {len(due):,} | {early} | {cut[49]:.1f} ms | {cut[98]:.1f} ms "
          f"| {late[-1]:.0f} ms | {cpu:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RATE)
