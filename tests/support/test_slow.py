"""What makes a machine slow for ``make test-slow`` takes half of it, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

from tests.support.environment import ROOT


def test_a_command_ends_as_it_would_alone() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.slow", "sh", "-c", "exit 7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 7
    assert "half of" in ran.stderr
