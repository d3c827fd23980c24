"""Measures alternatives in turns, so that a noisy machine is unfair to all of them alike."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

ROUNDS = 9


def measure(
    alternatives: Mapping[str, Callable[[], object]],
    *,
    calls: int,
    rounds: int = ROUNDS,
    warm_up: int | None = None,
) -> dict[str, list[float]]:
    """Return microseconds per call of each alternative, one figure a round."""
    for each in alternatives.values():
        for _ in range(max(20, calls // 5) if warm_up is None else warm_up):
            each()
    figures: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(rounds):
        for name, each in alternatives.items():
            gc.collect()
            began = time.perf_counter()
            for _ in range(calls):
                each()
            figures[name].append((time.perf_counter() - began) / calls * 1e6)
    return figures


def report(title: str, figures: dict[str, list[float]], *, floor: str) -> None:
    """Print a Markdown table: median, spread, and the median ratio to the floor round by round."""
    print(f"\n### {title}\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
    print("| | median µs | least–most µs | × floor | least–most |")
    print("|---|---|---|---|---|")
    for name, values in figures.items():
        ratios = [value / base for value, base in zip(values, figures[floor], strict=True)]
        print(
            f"| {name} | {statistics.median(values):.0f} | {min(values):.0f}–{max(values):.0f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} |"
        )


def facts() -> str:
    """Return what the figures depend on."""
    names = ("redis", "hiredis", "SQLAlchemy", "psycopg", "celery", "limits", "procrastinate")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"Python {platform.python_version()}, {versions}"


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a temporary folder."""
    with TemporaryDirectory(prefix="dispatcher-bench-") as path:
        yield Path(path)
