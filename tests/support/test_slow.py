"""What makes a machine slow for ``make test-slow`` takes half of it, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import slow
from tests.support.environment import ROOT
from tests.support.waiting import wait_until


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


def test_an_error_of_the_command_is_raised_as_it_is() -> None:
    with pytest.raises(OSError, match="of the command"), slow.half():
        raise OSError("of the command")


def test_busy_loops_end_with_the_process_that_began_them() -> None:
    begin = (
        "import os, tests.slow as slow\n"
        "with slow.busy_loops():\n"
        "    os.system('pgrep -P %d' % os.getpid())\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", begin], cwd=ROOT, capture_output=True, text=True, check=False
    )
    began = [int(pid) for pid in ran.stdout.split()]
    assert began
    wait_until(
        lambda: (
            not [
                pid
                for pid in began
                if Path(f"/proc/{pid}/cmdline").exists()
                and b"sys.stdin.read" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        )
    )
