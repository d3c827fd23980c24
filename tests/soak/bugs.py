"""Would the soak notice? Bugs are put into a copy of the package, one at a time.

``python -m tests.soak.bugs`` runs for each the soak with the faults that lie near, or a test that
aims at it, and prints what caught it. Exit 1 when one was not caught.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak.seeded import BUGS, Bug
from tests.support.environment import ROOT
from tests.support.workplace import workplace

SECONDS = 15.0
_LIMIT_SECONDS = 400
_NOTHING = "**nothing**"
_COPIED = ("dispatcher", "migrations", "tests", "pyproject.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of a bug: by what it was caught, and after how many faults."""

    bug: Bug
    caught_by: str
    faults: int
    seconds: float


def hunt(bug: Bug, *, seed: int, seconds: float) -> Found:
    """Put a bug into a copy, run what is to catch it, and tell."""
    began = time.monotonic()
    with workplace() as folder:
        for name in _COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        for change in bug.changes:
            change.apply(folder)
        caught_by, faults = _by_test(folder, bug) if bug.test else _by_soak(
            folder, bug, seed, seconds
        )  # fmt: skip
    return Found(bug=bug, caught_by=caught_by, faults=faults, seconds=time.monotonic() - began)


def _by_soak(folder: Path, bug: Bug, seed: int, seconds: float) -> tuple[str, int]:
    result = folder / "result.json"
    ended = _run(
        folder, "tests.soak", "--seed", str(seed), "--minutes", str(seconds / 60),
        "--drain", "60", "--only", ",".join(bug.faults), "--result", str(result),
        "--keep", str(folder / "history.jsonl"),
    )  # fmt: skip
    if not result.exists():
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return f"{_NOTHING}: the soak ended with {ended.returncode}: {last}", 0
    told = json.loads(result.read_text())
    by = [f"{name} ({many})" for name, many in told["violations_by_invariant"].items()]
    return ", ".join(by) or _NOTHING, told["faults"]


def _by_test(folder: Path, bug: Bug) -> tuple[str, int]:
    ended = _run(folder, "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.test)
    failed = [line for line in ended.stdout.splitlines() if line.startswith("FAILED")]
    return (failed[0].removeprefix("FAILED ").split(" - ")[0] if failed else _NOTHING), 0


def _run(folder: Path, *module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.bugs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of each soak")
    parser.add_argument("--only", help="part of the names of those to hunt")
    given = parser.parse_args()
    missed = 0
    print("| bug | caught by | faults | seconds |\n|---|---|---|---|")
    for bug in BUGS:
        if given.only and given.only not in bug.name:
            continue
        found = hunt(bug, seed=given.seed, seconds=given.seconds)
        missed += found.caught_by.startswith(_NOTHING)
        faults = "–" if bug.test else str(found.faults)
        print(f"| {bug.name} | {found.caught_by} | {faults} | {found.seconds:.0f} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
