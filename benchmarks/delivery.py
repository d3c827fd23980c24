"""Measure how fast a worker delivers what is due at once, against Celery's own tasks doing nothing.

The same broker, the same pool, one worker process each, in turns. A delivery is claimed, permitted
by the limits of its scope and of its channel, sent, and recorded in PostgreSQL; the
transport and Celery's task both write one line to a file. The tasks are there before the worker
starts; counted is from the first line to the last, and the CPU time of the
worker and of the servers in between.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis
from celery import Celery
from rounds import facts, folder
from sqlalchemy import Connection
from submit import postgres

from dispatcher import Dispatcher, Draft, Message, Settings
from dispatcher.app import App
from dispatcher.celery.configuration import options
from dispatcher.embedded import embedded
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate

MESSAGES = 20_000
ROUNDS = 3
BODY = {"text": "Your code is 123456."}
POOL = ("--pool=threads", "--concurrency=16")
_TICK = os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """Rate in messages/s, and CPU seconds for 1,000 of them: of the worker and of the servers."""

    rate: float
    cpu: float
    redis_cpu: float
    sql_cpu: float


class Ledger:
    """A transport that writes the instant of each send and does nothing else."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def send(self, message: Message) -> str | None:
        """Write down that ``message`` was sent."""
        os.write(self._file, f"{message.id} {time.time():.6f}\n".encode())
        return None


def main(messages: int) -> None:
    ours, theirs = [], []
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        for _ in range(ROUNDS):
            theirs.append(celery_run(settings, path, messages))
            ours.append(our_run(settings, path, messages))
    print(f"\n### {messages:,} due at once, one worker process, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}, {' '.join(POOL)}\n")
    print("| | messages/s (median) | least–most | CPU s per 1,000: worker | Redis | PostgreSQL |")
    print("|---|---|---|---|---|---|")
    for name, runs in (("Celery, tasks that do nothing", theirs), ("dispatcher", ours)):
        rates = [run.rate for run in runs]
        cpu = " | ".join(
            f"{statistics.median(each):.3f}" for each in [*zip(*runs, strict=True)][1:]
        )
        median = statistics.median(rates)
        print(f"| {name} | {median:,.0f} | {min(rates):,.0f}–{max(rates):,.0f} | {cpu} |")
    ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
    print(f"| ratio, round by round | {statistics.median(ratios):.1f} "
          f"| {min(ratios):.1f}–{max(ratios):.1f} | | | |")  # fmt: skip


def channelled(settings: Settings, url: str, ledger: Path, **channel: Any) -> Settings:
    """Return settings with one channel, which is limited and writes to a ledger."""
    carried = {
        "transport": "delivery:Ledger", "options": {"path": str(ledger)},
        "limits": ["100000/second"],
    }  # fmt: skip
    changes = {"database_url": url, "channels": {"sms": carried | channel}}
    return Settings(**(settings.model_dump() | changes))


def prepare(settings: Settings) -> None:
    """Build the tables, and let the sweep declare Redis complete."""
    parts = App(settings)
    migrate(parts.database)
    parts.reconciler.reconcile(settle=timedelta(0))
    parts.close()


def our_run(settings: Settings, path: Path, messages: int, *arguments: str) -> Run:
    with Dispatcher(settings) as dispatcher:
        at = datetime.now(UTC) + timedelta(seconds=5 + messages / 1_000)
        drafts = [
            Draft(channel="sms", recipient=f"{at:%H%M%S} {number}", body=BODY, send_at=at)
            for number in range(messages)
        ]
        answers = dispatcher.submit_many(drafts)
        if not all(isinstance(each, Message) for each in answers):
            raise SystemExit("submitting took longer than the messages had")
    while datetime.now(UTC) < at:
        time.sleep(0.1)
    command = dispatcher_command("worker", "--concurrency=16", *arguments)
    return watched(settings, path, command, messages)


def celery_run(settings: Settings, path: Path, messages: int) -> Run:
    app = plain_app(settings)
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(messages):
            app.send_task("nothing", producer=producer, ignore_result=True)
    command = [sys.executable, "-m", "celery", "-A", "delivery:plain", "worker", *POOL]
    command += ["--without-gossip", "--without-mingle", "--queues=plain"]
    return watched(settings, path, command, messages)


def plain_app(settings: Settings) -> Celery:
    """Return a Celery app with the same options and a task that does nothing."""
    app = Celery("plain", set_as_current=False)
    app.conf.update(options(settings))
    app.conf.update(task_queues=None, task_default_queue="plain", task_create_missing_queues=True)
    app.conf.update(
        worker_consumer="celery.worker.consumer:Consumer"
    )  # the dispatcher's would reject them
    return app


def watched(settings: Settings, path: Path, command: list[str], messages: int) -> Run:
    ledger = path / "ledger"
    ledger.unlink(missing_ok=True)
    with running(settings, path, command) as (pid, *_):
        deadline = time.monotonic() + 120
        while count(ledger) < messages // 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        before, began = cpu_of_all(pid, settings), count(ledger)
        while count(ledger) < messages and time.monotonic() < deadline:
            time.sleep(0.05)
        after = cpu_of_all(pid, settings)
    times = sorted(float(line.split()[1]) for line in ledger.read_text().splitlines())
    if len(times) != messages:
        raise SystemExit(f"{len(times)} of {messages} were sent")
    per_1_000 = 1_000 / (messages - began)
    cpu = [(end - start) * per_1_000 for start, end in zip(before, after, strict=True)]
    return Run((messages - 1) / (times[-1] - times[0]), *cpu)


def dispatcher_command(*arguments: str) -> list[str]:
    """Return what starts a command of the dispatcher."""
    return [sys.executable, "-m", "dispatcher", *arguments]


def count(ledger: Path) -> int:
    """Return how many sends were written down."""
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    return sum(_times(pid)[:2])


def cpu_of_all(pid: int, settings: Settings) -> tuple[float, float, float]:
    """Return the CPU time of a worker, of Redis, and of PostgreSQL with all its processes."""
    with redis.Redis.from_url(settings.redis_url) as client:
        used = cast("dict[str, float]", client.info("cpu"))
    tree = processes_of_postgres(settings)
    ended = sum(_times(tree[0])[2:])
    sql = ended + sum(sum(_times(each)[:2]) for each in tree)
    return cpu_seconds(pid), used["used_cpu_sys"] + used["used_cpu_user"], sql


def processes_of_postgres(settings: Settings) -> list[int]:
    """Return the ids of PostgreSQL's processes, the postmaster first."""
    folder = Path(Database(settings.database_url).run(_data_directory))
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    return [postmaster, *_children(postmaster)]


def _data_directory(connection: Connection) -> str:
    found: str = connection.exec_driver_sql("SHOW data_directory").scalar_one()
    return found


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _times(pid: int) -> list[float]:
    """Return the CPU seconds of a process and of its children that have ended, twice two."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except FileNotFoundError:  # it has ended meanwhile
        return [0.0] * 4
    return [int(each) / _TICK for each in fields[11:15]]


@contextmanager
def running(settings: Settings, path: Path, *commands: list[str]) -> Iterator[list[int]]:
    """Run processes with these settings; yield their ids."""
    environment = os.environ | settings.environment() | {"LEDGER": str(path / "ledger")}
    here = Path(__file__).parent
    environment["PYTHONPATH"] = f"{here}{os.pathsep}{here.parent}"
    children = []
    for number, command in enumerate(commands):
        with (path / f"process-{number}.log").open("wb") as log:
            children.append(
                subprocess.Popen(command, cwd=path, env=environment, stdout=log, stderr=log)
            )
    try:
        yield [each.pid for each in children]
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


if "LEDGER" in os.environ and __name__ == "delivery":  # in a worker
    plain = plain_app(Settings.load())
    _ledger = Ledger(os.environ["LEDGER"])

    @plain.task(name="nothing", ignore_result=True)
    def nothing() -> None:
        """Write a line."""
        os.write(_ledger._file, f"nothing {time.time():.6f}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
