"""docs/testing.md: its code, put into a test module, passes under pytest with the plugin alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks, page
from tests.support.processes import LIGHT

_HEAD = """
from datetime import UTC, datetime, timedelta
from dispatcher import QuotaExceeded, TemporaryFailure
"""


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    shown = blocks(page("docs/testing.md"), "python")
    conftest = [each for each in shown if "@pytest.fixture" in each]
    tests = [each for each in shown if "def test_" in each]
    assert len(conftest) + len(tests) == len(shown)
    (tmp_path / "conftest.py").write_text("\n".join(conftest))
    (tmp_path / "test_page.py").write_text(_HEAD + "\n".join(tests))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *LIGHT, "--rootdir", str(tmp_path), "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(tests)} passed" in ran.stdout
