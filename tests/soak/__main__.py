"""Run a soak: ``python -m tests.soak --seed 1 --minutes 2``. Exit 1 when a promise was broken."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from tests.soak.faults import BY_NAME
from tests.soak.nemesis import Nemesis, Strike, schedule
from tests.soak.stage import BEATS, CLIENTS, WORKERS, Stage
from tests.support.history import ENDED, History, Recorder, is_occurrence
from tests.support.judge import Violation, is_frozen, judge, recoveries
from tests.support.waiting import wait_until
from tests.support.workplace import workplace

_SETTLE_SECONDS = 20.0
_SPARE_SECONDS = 300.0
"""What start, settling and judging may take beside the faults and the drain."""
_MOST_SHOWN = 20


def main() -> int:
    options = _arguments()
    clustered = options.redis == "cluster"
    strikes = schedule(options.seed, options.minutes * 60, only=options.only, clustered=clustered)
    # What was accepted goes out no faster than the limits of the channels allow.
    drain = 120 + 60 * options.minutes
    _limit(options.minutes * 60 + drain + _SPARE_SECONDS)
    with workplace() as folder:
        lines, figures = soak(folder, options.seed, strikes, drain=drain, clustered=clustered)
        logs = {log.stem: log.read_text(errors="replace") for log in folder.glob("*.log")}
    violations = judge(lines)
    print(json.dumps(figures | _result(lines, violations), indent=2))
    if violations:
        path = Path(f"soak-{options.seed}.jsonl")
        path.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
        for name, text in logs.items():
            path.with_suffix(f".{name}.log").write_text(text)
        print(f"the history is in {path}, the logs are beside it")
    print("again: python -m tests.soak", *sys.argv[1:])
    for violation in violations[:_MOST_SHOWN]:
        print(violation, file=sys.stderr)
    return 1 if violations else 0


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
            stage.end_series()
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
        wrong = [violation for violation in judge(lines) if violation.invariant.startswith("I9")]
        if not wrong or time.monotonic() > deadline:
            return lines
        threading.Event().wait(0.5)


def _result(lines: Sequence[dict[str, Any]], violations: Sequence[Violation]) -> dict[str, Any]:
    history = History.of(lines)
    statuses = Counter(row["status"] for row in history.rows.values())
    outcomes = Counter(line["outcome"] for tries in history.attempts.values() for line in tries)
    accepts = Counter(send.id for send in history.sends if send.accepted)
    recovered = sorted(milliseconds for _, milliseconds in recoveries(history))
    answers = Counter((call.op, call.answer) for call in history.calls)
    return {
        "kinds": len({line["fault"] for line in history.faults}),
        "calls": len(history.calls),
        "answers": {f"{op} {answer}": count for (op, answer), count in sorted(answers.items())},
        "accepted": len(
            {call.told["id"] for call in history.calls if call.op == "submit"
             and call.answer == "ok"}
        ),
        "stored": len(history.rows),
        "occurrences": sum(is_occurrence(row) for row in history.rows.values()),
        "reminders": sum(
            bool(row["event"]) and not is_occurrence(row) for row in history.rows.values()
        ),
        **{status: statuses[status] for status in sorted(ENDED)},
        "sends": len(history.sends),
        "sends_frozen": sum(is_frozen(send, history) for send in history.sends),
        "sends_of_tenants": dict(
            Counter(tenant for send in history.sends
                    if (tenant := send.begin["scopes"].get("tenant")))
        ),
        "delays": dict(Counter(str(line["limit"]) for line in history.delays)),
        "attempts_unknown": outcomes["unknown"],
        "messages_twice": sum(count > 1 for count in accepts.values()),
        "recovery_p50_ms": round(median(recovered)) if recovered else None,
        "recovery_max_ms": round(recovered[-1]) if recovered else None,
        "longest_answer_ms": round(
            max((call.until - call.at for call in history.calls if call.told), default=0) / 1_000
        ),
        "violations": len(violations),
        "violations_by_invariant": dict(Counter(violation.invariant for violation in violations)),
    }  # fmt: skip


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
    parser.add_argument(
        "--only", nargs="*", choices=BY_NAME, default=(), help="kinds of faults", metavar="FAULT"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
