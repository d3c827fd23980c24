"""What makes a machine slow for ``make test-slow`` takes half of it, and leaves nothing behind."""

from __future__ import annotations

import sys

from tests.support.environment import ROOT
from tests.support.processes import ran


def test_a_command_ends_as_it_would_alone() -> None:
    ended = ran(sys.executable, "-m", "tests.slow", "sh", "-c", "exit 7", cwd=ROOT)
    assert ended.returncode == 7
    assert "half of" in ended.stderr
