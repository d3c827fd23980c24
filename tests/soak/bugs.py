"""Would the tests notice? Known bugs are planted, one at a time.

``python -m tests.soak.bugs`` runs for each the simulation, or the soak with the faults that lie
near, and prints what caught it. Exit 1 when one was not caught.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.simulation import bugs as simulated
from tests.soak.seeded import BUGS, Bug
from tests.support.environment import ROOT
from tests.support.planting import Seams, planted
from tests.support.workplace import workplace

SECONDS = 15.0
_LIMIT_SECONDS = 300
_NOTHING = "**nothing**"

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4,12}){4}")

Caught = tuple[str, int]
"""By what, and among how many faults."""


def _by_simulation(name: str) -> Caught:
    found = simulated.hunt(name)
    first = next((sentences[0] for sentences in found.broken.values()), _NOTHING)
    return f"simulation: {_ID.sub('…', first)}", found.faults


def _by_soak(name: str, bug: Bug, seed: int, seconds: float) -> Caught:
    with workplace() as folder:
        result = folder / "result.json"
        command = [
            *(sys.executable, "-m", "tests.soak", "--bug", name, "--seed", str(seed)),
            *("--minutes", str(seconds / 60), "--drain", "60", "--only", ",".join(bug.faults)),
            *("--result", str(result), "--keep", str(folder / "history.jsonl")),
        ]
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
        )
        if not result.exists():
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            return f"{_NOTHING}: the soak ended with {ended.returncode}: {last}", 0
        told = json.loads(result.read_text())
    by = told["violations_by_invariant"]
    text = ", ".join(f"{each} ({many})" for each, many in by.items())
    if not any(each.split()[0] == bug.invariant for each in by):
        text = f"{_NOTHING} by {bug.invariant}: {text}"
    return text, told["faults"]


def _hunts(seed: int, seconds: float) -> Iterator[tuple[str, str, Callable[[], Caught]]]:
    for name, seams in simulated.BUGS.items():
        yield name, _named(seams), partial(_by_simulation, name)
    for name, bug in BUGS.items():
        yield name, _named(bug.seams), partial(_by_soak, name, bug, seed, seconds)


def _named(seams: Seams) -> str:
    return ", ".join(f"`{each.removeprefix('tests.')}`" for each in seams)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.bugs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of each soak")
    parser.add_argument("--only", default="", help="part of the names of those to hunt")
    given = parser.parse_args()
    for each in (*simulated.BUGS.values(), *(bug.seams for bug in BUGS.values())):
        with planted(each):  # or fail at once
            pass
    missed = 0
    print("| bug | instead of | caught by | faults | seconds |\n|---|---|---|---|---|")
    for name, seams, hunt in _hunts(given.seed, given.seconds):
        if given.only not in name:
            continue
        began = time.monotonic()
        caught_by, faults = hunt()
        missed += _NOTHING in caught_by
        took = time.monotonic() - began
        print(f"| {name} | {seams} | {caught_by} | {faults} | {took:.0f} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
