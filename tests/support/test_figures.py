"""What tests measure stands at the end of the run, also when several processes run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import LIGHT

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.support.figures import pytest_terminal_summary, report\n"
TESTS = """
def test_one(report): report("7 ms")
def test_two(report): report("9 ms"); assert False
"""


def test_figures_of_all_processes_are_told(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = ["-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *LIGHT, str(tmp_path)]
    found = subprocess.run(
        [sys.executable, *command, "--rootdir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    measured = found.stdout.partition(" measured ")[2].splitlines()
    assert {"test_one: 7 ms", "test_two: 9 ms"} <= set(measured), found.stdout
