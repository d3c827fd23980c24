"""The tables of the page about scaling are those that its script prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_page_are_printed_by_the_script() -> None:
    printed = subprocess.run(
        [sys.executable, "benchmarks/scaling.py"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    tables = printed.strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        assert table in page
