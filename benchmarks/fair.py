"""Measure who goes first under a limit of 100 a second: priorities and fair shares of tenants.

Real workers and a real beat, PostgreSQL, a transport that writes down when it is called. Stories:

``small``: A has 100,000 due, 99 tenants 10 each, and A submits codes of high priority meanwhile;
``campaigns``: A's are of 1,000 campaigns; ``first-come``: the same without fair shares;
``shares``: five tenants always have messages; ``switched``: workers restart with fair shares off
and on; ``alone``: one tenant sends half of the limit, and nobody waits.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from delivery import BODY, channelled, count, cpu_seconds, dispatcher_command, prepare, running
from herd import COUNT_SNOOZES
from rounds import facts, folder
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.embedded import embedded

CAP = 100
LARGE, TENANTS, EACH = int(os.environ.get("LARGE", "100000")), 99, 10
FAR = timedelta(hours=1)
"""Submitting takes long: all is promised for later, and moved to its time in one statement."""
MOVE = """
UPDATE dispatcher_messages
SET send_at = %(at)s, next_attempt_at = %(at)s, enqueue_at = %(at)s - interval '30 seconds'
"""
CODES = 15
SOON = timedelta(seconds=1)


class Story:
    """Runs one story with two workers: what was sent, of whom, and when."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.ledger = path / "ledger"
        self.tenant_of: dict[str, str] = {}
        self.send_at: dict[str, datetime] = {}
        self.cpu = 0.0

    def submit(self, dispatcher: Dispatcher, drafts: list[Draft]) -> None:
        """Submit drafts, and note whose they are."""
        for start in range(0, len(drafts), 5_000):
            part = drafts[start : start + 5_000]
            for draft, answer in zip(part, dispatcher.submit_many(part), strict=True):
                if not isinstance(answer, Message):
                    raise SystemExit(f"not accepted: {answer}")
                self.note(answer, draft.campaign if draft.priority else None)

    def note(self, message: Message, name: str | None = None) -> None:
        """Note of whom a message is, for the report."""
        self.tenant_of[str(message.id)] = name or message.scopes["tenant"]
        self.send_at[str(message.id)] = message.send_at

    def work(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Run two workers and a beat, so long at most."""
        commands = [dispatcher_command(name) for name in ("worker", "worker", "beat")]
        with running(self.settings, self.path, *commands) as pids:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not until():
                time.sleep(0.1)
            self.cpu += sum(cpu_seconds(pid) for pid in pids[:2])

    def sent(self) -> list[tuple[str, float, float]]:
        """Return of each send the tenant, the instant and how late it was, in seconds."""
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return [
            (self.tenant_of[name], float(at), float(at) - self.send_at[name].timestamp())
            for name, at in lines
        ]

    def move(self, ahead: timedelta) -> datetime:
        """Let all messages be due so far ahead."""
        with psycopg.connect(self.settings.database_url) as connection:
            at = datetime.now(UTC) + ahead
            connection.execute(MOVE, {"at": at})
        self.send_at = dict.fromkeys(self.send_at, at)
        return at

    def snoozes(self) -> float:
        """Return how often a message was put back."""
        with psycopg.connect(self.settings.database_url) as connection:
            [(number,)] = connection.execute("SELECT count(*) FROM snoozes").fetchall()
        return float(number)

    def report(self, title: str, *lines: str) -> None:
        """Print these lines, and what every story tells."""
        sent = self.sent()
        times = sorted(at for _, at, _ in sent)
        most = max(sum(at <= later < at + 1 for later in times[n : n + CAP + 5])
                   for n, at in enumerate(times))  # fmt: skip
        steady = times[CAP:-CAP] if len(times) > 3 * CAP else times
        rate = (len(steady) - 1) / (steady[-1] - steady[0])
        twice = len(times) - len({*(line.split()[0] for line in
                                    self.ledger.read_text().splitlines())})  # fmt: skip
        print(f"\n### {title}\n\n{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
        for line in lines:
            print(f"- {line}")
        print(
            f"- {len(times):,} sent at {rate:.1f}/s, {rate / CAP:.1%} of the limit; at most {most} "
            f"in any second; {twice} twice; {self.snoozes() / len(times):.2f} snoozes a message, "
            f"{self.cpu * 1e3 / len(times):.2f} s of worker CPU per 1,000 sent",
            flush=True,
        )


def draft(tenant: str, number: int, at: datetime, **more: Any) -> Draft:
    return Draft(
        channel="sms", recipient=f"{tenant} {number}", body=BODY, send_at=at,
        scopes={"tenant": tenant}, **more,
    )  # fmt: skip


def small(story: Story, title: str, campaigns: int = 1) -> None:
    """Count from the promised time."""
    at = datetime.now(UTC) + FAR
    with Dispatcher(story.settings) as dispatcher:
        story.submit(
            dispatcher, [draft("A", n, at, campaign=f"c{n % campaigns}") for n in range(LARGE)]
        )
        story.submit(
            dispatcher, [draft(f"t{t}", n, at) for n in range(EACH) for t in range(TENANTS)]
        )
        at = story.move(timedelta(seconds=30))
        codes: list[Message] = []

        def is_over() -> bool:
            late = (datetime.now(UTC) - at).total_seconds()
            if late > 5 + 2 * len(codes) and len(codes) < CODES:
                code = dispatcher.submit(
                    channel="sms", recipient=f"code {len(codes)}", body=BODY,
                    send_at=datetime.now(UTC) + SOON, scopes={"tenant": "A"}, priority=50,
                )  # fmt: skip
                codes.append(code)
                story.note(code, "code")
            return late > 45

        story.work((at - datetime.now(UTC)).total_seconds() + 60, is_over)
    sent = story.sent()
    left = [late for tenant, _, late in sent if tenant.startswith("t")]
    code = sorted(late for tenant, _, late in sent if tenant == "code")
    first = Counter(int(late) // 5 * 5 for tenant, _, late in sent if tenant.startswith("t"))
    story.report(
        title,
        f"{len(left)} of {TENANTS * EACH} of the small tenants left, the last after "
        f"{max(left, default=0):.1f} s; by 5 seconds: {dict(sorted(first.items()))}",
        f"{len(code)} of {len(codes)} codes of A left after {statistics.median(code or [0]):.2f} "
        f"s, at most {max(code, default=0):.2f} s",
    )


def shares(story: Story) -> None:
    weights: dict[str, float] = {"b": 2, "c": 4, "d": 0.5}
    total = 8.5
    at = datetime.now(UTC) + FAR
    with Dispatcher(story.settings) as dispatcher:
        for tenant in "abcde":
            number = int(80 * CAP * weights.get(tenant, 1) / total) + 150
            story.submit(dispatcher, [draft(tenant, n, at) for n in range(number)])
    at = story.move(timedelta(seconds=15))
    story.work(100, lambda: (datetime.now(UTC) - at).total_seconds() > 70)
    window = [tenant for tenant, _, late in story.sent() if 8 <= late < 68]
    of = Counter(window)
    parts = {
        tenant: f"{of[tenant] / len(window) / (weights.get(tenant, 1) / total) - 1:+.1%}"
        for tenant in "abcde"
    }
    story.report(
        "Five tenants of weights 1, 2, 4, 0.5, 1, for 60 s",
        f"{len(window) / 60:.1f}/s; against their weights: {parts}",
    )


def switched(story: Story, off: Settings) -> None:
    at = datetime.now(UTC) + FAR
    with Dispatcher(story.settings) as dispatcher:
        for tenant in ("A", "b", "c", "d"):
            number = 5_000 if tenant == "A" else 400
            story.submit(dispatcher, [draft(tenant, n, at) for n in range(number)])
    story.move(timedelta(seconds=15))
    on, total = story.settings, 6_200
    story.work(40)
    for settings, seconds in ((off, 30), (on, 30), (off, 25), (on, 120)):
        story.settings = settings
        print(f"- {count(story.ledger):,} were sent before the next restart")
        story.work(seconds, lambda: count(story.ledger) >= total)
    ends = {tenant: max(late for name, _, late in story.sent() if name == tenant)
            for tenant in "Abcd"}  # fmt: skip
    story.report(
        f"Switched off, on, off and on: {total:,} messages",
        f"the last of each after { ({name: round(end, 1) for name, end in ends.items()}) } s",
    )


def alone(story: Story) -> None:
    at = datetime.now(UTC) + timedelta(seconds=15)
    number = 20 * CAP
    with Dispatcher(story.settings) as dispatcher:
        story.submit(
            dispatcher,
            [draft("a", n, at + timedelta(seconds=2 * n / CAP)) for n in range(number)],
        )
    story.work(100, lambda: count(story.ledger) >= number)
    late = sorted(late for *_, late in story.sent())
    p99 = statistics.quantiles(late, n=100)[-1]
    story.report(
        "One tenant at half of the limit",
        f"lateness: median {statistics.median(late) * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms; "
        f"early: {sum(each < 0 for each in late)}",
    )


def main(*names: str) -> None:
    for name in names or ("small", "campaigns", "shares", "switched", "alone"):
        with folder() as path, embedded(path / "redis") as servers, postgres() as url:
            weights = {"b": 2, "c": 4, "d": 0.5} if name == "shares" else {}
            limits = [f"{CAP}/second"]
            quotas = {"quotas": ("1000/second",), "scopes": {"tenant": {"quotas": ["1000000/day"]}}}
            first_come = channelled(servers, url, path / "ledger", limits=limits)
            dumped = first_come.model_dump() | quotas
            first_come = Settings(**dumped)
            if name != "first-come" and "--before" not in sys.argv:
                dumped["channels"]["sms"] |= {"fair_by": "tenant", "weights": weights}
            story = Story(path, Settings(**dumped))
            prepare(story.settings)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(COUNT_SNOOZES)
            match name:
                case "small" | "first-come":
                    small(story, f"A has {LARGE:,} due, {TENANTS} tenants {EACH} each ({name})")
                case "campaigns":
                    small(story, "The same, A's of 1,000 campaigns", 1_000)
                case "shares":
                    shares(story)
                case "switched":
                    switched(story, first_come)
                case "alone":
                    alone(story)


if __name__ == "__main__":
    main(*(name for name in sys.argv[1:] if not name.startswith("--")))
