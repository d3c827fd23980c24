"""How long the command line and the import of the package take, beside Celery's command line."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

ROUNDS = 9
BIN = Path(sysconfig.get_path("scripts"))
WAYS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import dispatcher": [sys.executable, "-c", "import dispatcher"],
    "from dispatcher import Dispatcher": [
        sys.executable,
        "-c",
        "from dispatcher import Dispatcher",
    ],
    "dispatcher --version": [str(BIN / "dispatcher"), "--version"],
    "dispatcher version": [str(BIN / "dispatcher"), "version"],
    "dispatcher --help": [str(BIN / "dispatcher"), "--help"],
    "celery --version": [str(BIN / "celery"), "--version"],
}


class Took(NamedTuple):
    """Seconds by the clock, and of the processor: these tell also on a busy machine."""

    clock: float
    processor: float


def took(command: list[str]) -> Took:
    began, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    spent = after.children_user + after.children_system
    return Took(time.perf_counter() - began, spent - before.children_user - before.children_system)


def main() -> None:
    for command in WAYS.values():  # compiled, and read from the disk
        took(command)
    rounds = [{way: took(command) for way, command in WAYS.items()} for _ in range(ROUNDS)]
    print(f"{'median of':24}{'clock':>8}{'processor':>12}{'x celery':>10}")
    for way in WAYS:
        clock = statistics.median(each[way].clock for each in rounds)
        processor = statistics.median(each[way].processor for each in rounds)
        ratio = statistics.median(
            each[way].processor / each["celery --version"].processor for each in rounds
        )
        print(f"{way:24}{clock:>6.2f} s{processor:>10.2f} s{ratio:>10.2f}")


if __name__ == "__main__":
    main()
