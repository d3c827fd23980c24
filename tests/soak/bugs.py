"""Would the tests notice? Known bugs are planted, one at a time.

``python -m tests.soak.bugs`` runs for each the simulation, a test, or the soak with the faults that
lie near, and prints what caught it. Exit 1 when one was not caught.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from tests.simulation import bugs as simulated
from tests.soak.__main__ import soak
from tests.soak.nemesis import schedule
from tests.soak.seeded import BUGS, Bug
from tests.support.environment import ROOT
from tests.support.judge import judge
from tests.support.planting import Seams, planted
from tests.support.processes import ran
from tests.support.workplace import workplace

SECONDS = 15.0
_LIMIT_SECONDS = 300
_DRAIN_SECONDS = 60.0
_NOTHING = "**nothing**"

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4,12}){4}")

Caught = tuple[str, int | None]
"""By what, and among how many faults: None for a test, which causes one."""


def _by_simulation(name: str) -> Caught:
    hunt = simulated.hunt(name)
    first = next((sentences[0] for sentences in hunt.broken.values()), _NOTHING)
    return f"simulation: {_ID.sub('…', first)}", hunt.faults


def _by_soak(name: str, bug: Bug, seed: int, seconds: float) -> Caught:
    with workplace() as folder:
        strikes = schedule(seed, seconds, only=bug.faults)
        lines, figures = soak(folder, seed, strikes, drain=_DRAIN_SECONDS, bug=name)
    broken = Counter(violation.invariant for violation in judge(lines))
    text = ", ".join(f"{invariant} ({times})" for invariant, times in broken.items())
    if not any(invariant.split()[0] == bug.invariant for invariant in broken):
        text = f"{_NOTHING} by {bug.invariant}: {text}"
    return text, figures["faults"]


def _by_test(name: str, bug: Bug) -> Caught:
    pytest = ("tests.soak.seeded", name, "pytest", "-qx", "-p", "no:cacheprovider", bug.test)
    ended = ran(sys.executable, "-m", *pytest, cwd=ROOT, timeout=_LIMIT_SECONDS)
    is_caught = ended.returncode == 1 and "FAILED" in ended.stdout
    return bug.test if is_caught else f"{_NOTHING}: {ended.stdout[-200:]}", None


def _hunts(seed: int, seconds: float) -> Iterator[tuple[str, str, Callable[[], Caught]]]:
    for name, simulated_bug in simulated.BUGS.items():
        yield name, _named(simulated_bug.seams), partial(_by_simulation, name)
    for name, bug in BUGS.items():
        hunt = partial(_by_test, name, bug)
        if not bug.test:
            hunt = partial(_by_soak, name, bug, seed, seconds)
        yield name, _named(bug.seams), hunt


def _named(seams: Seams) -> str:
    return ", ".join(f"`{seam.removeprefix('tests.')}`" for seam in seams)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.bugs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of each soak")
    parser.add_argument("--only", default="", help="part of the names of those to hunt")
    options = parser.parse_args()
    every = [bug.seams for bug in simulated.BUGS.values()] + [bug.seams for bug in BUGS.values()]
    for planting in every:
        with planted(planting):  # or fail at once
            pass
    missed = 0
    print("| bug | instead of | caught by | faults | seconds |\n|---|---|---|---|---|")
    for name, seams, hunt in _hunts(options.seed, options.seconds):
        if options.only not in name:
            continue
        began = time.monotonic()
        caught_by, faults = hunt()
        missed += _NOTHING in caught_by
        took = time.monotonic() - began
        print(f"| {name} | {seams} | {caught_by} | {faults or '–'} | {took:.0f} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
