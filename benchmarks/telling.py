"""Measure what logs and metrics cost a worker: deliveries as in delivery.py, told and not told."""

from __future__ import annotations

import statistics
import sys
from datetime import UTC, datetime

from delivery import Run, channelled, our_run, prepare
from rounds import facts, folder
from submit import postgres

from dispatcher.embedded import embedded

MESSAGES = 5_000
ROUNDS = 3
QUIET = "--loglevel=WARNING"
WAYS = {
    "nothing told": ("console", [QUIET]),
    "a line for each": ("console", []),
    "a line of JSON for each": ("json", []),
    "metrics": ("console", [QUIET, "--metrics-port=0"]),
}
FLOOR = "nothing told"


def main(messages: int) -> None:
    runs: dict[str, list[Run]] = {name: [] for name in WAYS}
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        settings = channelled(servers, url, path / "ledger")
        prepare(settings)
        for _ in range(ROUNDS):
            for name, (log_format, arguments) in WAYS.items():
                told = settings.model_copy(update={"log_format": log_format})
                runs[name].append(our_run(told, path, messages, *arguments))
    print(f"\n### What telling costs: {messages:,} due at once, one worker process, PostgreSQL\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | messages/s (median) | worker CPU s per 1,000 | × floor | least–most |")
    print("|---|---|---|---|---|")
    for name, some in runs.items():
        cpu = [run.cpu for run in some]
        ratios = [mine / run.cpu for mine, run in zip(cpu, runs[FLOOR], strict=True)]
        rate = statistics.median(run.rate for run in some)
        print(
            f"| {name} | {rate:,.0f} | {statistics.median(cpu):.3f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} |"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
