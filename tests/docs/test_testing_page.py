"""docs/testing.md: its code, put into a test module, passes under pytest with the plugin alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import LIGHT

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
_HEAD = """
from datetime import UTC, datetime, timedelta
from dispatcher import QuotaExceeded, TemporaryFailure
"""


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    conftest = [each for each in blocks if "@pytest.fixture" in each]
    tests = [each for each in blocks if "def test_" in each]
    assert len(conftest) + len(tests) == len(blocks)
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
