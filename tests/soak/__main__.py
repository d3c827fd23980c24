"""Run a soak: ``python -m tests.soak --seed 1 --minutes 2``. Exit 1 when a promise was broken."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from tests.soak.faults import BY_NAME
from tests.soak.nemesis import FAULTS_A_MINUTE, Nemesis, Strike, schedule
from tests.soak.seeded import BUGS
from tests.soak.stage import BEATS, CLIENTS, WORKERS, Stage
from tests.support.environment import ROOT
from tests.support.history import ENDED, History, Recorder, read
from tests.support.judge import Violation, is_frozen, judge, recoveries
from tests.support.waiting import wait_until
from tests.support.workplace import workplace

_SETTLE_SECONDS = 20.0
_SPARE_SECONDS = 150.0
"""What start, settling and judging may take beside the faults and the drain."""
_MOST_SHOWN = 20
_PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "psycopg")


def main() -> int:
    given = _arguments()
    clustered = given.redis == "cluster"
    strikes = schedule(
        given.seed,
        given.minutes * 60,
        only=given.only,
        a_minute=given.faults_a_minute,
        clustered=clustered,
    )
    if given.schedule:
        for strike in strikes:
            print(f"{strike.at:8.3f} {strike.fault:20} {strike.target:16} {strike.seconds:.3f} s")
        return 0
    if given.judge:
        return _tell(judge(read(given.judge)))
    commit = _commit()
    # What was accepted goes out no faster than the limits of the channels allow.
    drain = 120 + 60 * given.minutes if given.drain is None else given.drain
    _limit(given.minutes * 60 + drain + _SPARE_SECONDS)
    with workplace() as folder:
        lines, told = soak(
            folder, given.seed, strikes, drain=drain, bug=given.bug, clustered=clustered
        )
        logs = {log.stem: log.read_text(errors="replace") for log in folder.glob("*.log")}
    violations = judge(lines)
    again = f"python -m tests.soak --seed {given.seed} --minutes {given.minutes:g}" + "".join(
        [" --redis=cluster"] * clustered
        + [f" --only {','.join(given.only)}"] * bool(given.only)
        + [f" --bug '{given.bug}'"] * bool(given.bug)
    )
    result = (
        {"seed": given.seed, "minutes": given.minutes, "commit": commit}
        | told
        | _result(lines, violations)
    )
    text = json.dumps(result, indent=2)
    print(text)
    if given.result:
        given.result.write_text(text)
    if violations or given.keep:
        path = Path(given.keep or f"soak-{given.seed}.jsonl")
        with path.open("w") as file:
            file.writelines(json.dumps(line, default=str) + "\n" for line in lines)
        for name, text in logs.items():
            path.with_suffix(f".{name}.log").write_text(text)
        print(f"the history is in {path}, the logs are beside it; judge it again:")
        print(f"python -m tests.soak --judge {path}")
    print(f"again: {again}")
    return _tell(violations)


def soak(
    folder: Path,
    seed: int,
    strikes: Sequence[Strike],
    *,
    drain: float,
    bug: str | None = None,
    clustered: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Play a schedule, heal, drain; return the history, and figures that it does not tell."""
    with Stage(folder, seed, bug, clustered) as stage:
        wait_until(lambda: stage.sends_begun() > 5, 40, every=0.1)
        nemesis = Nemesis(stage)
        with Observer(stage):
            began = time.monotonic()
            nemesis.run(strikes)
            took = time.monotonic() - began
            stage.pass_all()
            stage.leave(*CLIENTS)
            healed = time.monotonic()
            with suppress(AssertionError):  # the judge tells what is left
                wait_until(stage.is_drained, drain, every=0.2)
            drained = time.monotonic() - healed
        lines = _settled(stage)
        stage.leave(*WORKERS, *BEATS)
        lines += stage.told()
        lines += stage.leaks()
        told = {
            "faults": sum(nemesis.done.values()),
            "faults_by_kind": dict(sorted(nemesis.done.items())),
            "missed": sum(nemesis.missed.values()),
            "seconds": round(took, 1),
            "drain_seconds": round(drained, 1),
            "restarts": stage.supervised.restarts,
            "receivers": stage.receivers.did,
        }
    return lines, told


class Observer:
    """Looks into SQL again and again, past all lines, for ends that change."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._shown: dict[str, tuple[str, int]] = {}
        self._recorder = Recorder(stage.folder / "observer.jsonl")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join(20)
        self._recorder.close()

    def _run(self) -> None:
        while not self._leaving.wait(0.7):
            with suppress(psycopg.Error):
                self._look()

    def _look(self) -> None:
        with self._stage.sql() as connection:
            rows = connection.execute(
                "SELECT id, status, claim_token FROM dispatcher_messages WHERE status <> 'void'"
            ).fetchall()
        for row in rows:
            id_, shown = str(row["id"]), (row["status"], row["claim_token"])
            if self._shown.get(id_) != shown:
                self._shown[id_] = shown
                self._recorder.write("seen", id=id_, status=shown[0], token=shown[1])


def _settled(stage: Stage) -> list[dict[str, Any]]:
    """Return terms, rows and places, once the windows agree with SQL or have had their time."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        lines = [stage.terms(), *stage.rows(), *stage.places()]
        wrong = [each for each in judge(lines) if each.invariant.startswith("I9")]
        if not wrong or time.monotonic() > deadline:
            return lines
        threading.Event().wait(0.5)


def _result(lines: Sequence[dict[str, Any]], violations: Sequence[Violation]) -> dict[str, Any]:
    history = History.of(lines)
    statuses = Counter(row["status"] for row in history.rows.values())
    outcomes = Counter(each["outcome"] for some in history.attempts.values() for each in some)
    accepts = Counter(each.id for each in history.sends if each.accepted)
    recovered = sorted(milliseconds for _, milliseconds in recoveries(history))
    answers = Counter((call.op, call.answer) for call in history.calls)
    return {
        "kinds": len({line["fault"] for line in history.faults}),
        "calls": len(history.calls),
        "answers": {f"{op} {answer}": many for (op, answer), many in sorted(answers.items())},
        "accepted": len(
            {call.told["id"] for call in history.calls if call.op == "submit"
             and call.answer == "ok"}
        ),
        "stored": len(history.rows),
        **{status: statuses[status] for status in sorted(ENDED)},
        "sends": len(history.sends),
        "sends_frozen": sum(is_frozen(each, history) for each in history.sends),
        "attempts_unknown": outcomes["unknown"],
        "messages_twice": sum(many > 1 for many in accepts.values()),
        "recovery_p50_ms": round(median(recovered)) if recovered else None,
        "recovery_max_ms": round(recovered[-1]) if recovered else None,
        "longest_answer_ms": round(
            max((call.until - call.at for call in history.calls if call.told), default=0) / 1_000
        ),
        "violations": len(violations),
        "violations_by_invariant": dict(Counter(each.invariant for each in violations)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }  # fmt: skip


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _tell(violations: Sequence[Violation]) -> int:
    for each in violations[:_MOST_SHOWN]:
        print(each, file=sys.stderr)
    return 1 if violations else 0


def _limit(seconds: float) -> None:
    """End this process, and by its guards all others, if it takes longer than it may."""

    def end() -> None:
        print(f"the soak took more than {seconds:.0f} s", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument(
        "--redis", choices=("one", "cluster"), default="one", help="where the windows lie"
    )
    parser.add_argument("--faults-a-minute", type=float, default=FAULTS_A_MINUTE)
    parser.add_argument(
        "--only",
        type=lambda text: tuple(text.split(",")),
        default=(),
        help="kinds of faults, with commas between them",
    )
    parser.add_argument(
        "--drain", type=float, help="most seconds for the rest (default: 120, and 60 a minute)"
    )
    parser.add_argument("--bug", choices=BUGS, help="run the services and clients with this bug")
    parser.add_argument("--schedule", action="store_true", help="only print the schedule")
    parser.add_argument("--judge", type=Path, help="only judge the history in this file")
    parser.add_argument("--result", type=Path, help="write the figures to this file, too")
    parser.add_argument("--keep", help="write the history to this file, whatever comes of it")
    given = parser.parse_args()
    strange = set(given.only) - BY_NAME.keys()
    if strange:
        parser.error(f"no such faults: {', '.join(sorted(strange))}")
    return given


if __name__ == "__main__":
    sys.exit(main())
