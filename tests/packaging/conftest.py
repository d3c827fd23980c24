"""The wheel, built once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from tests.support.processes import ran


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", made)
    done = ran(*build, ROOT, cwd=made)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = made.glob("*.whl")
    return found
