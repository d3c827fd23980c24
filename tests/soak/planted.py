"""Run a module with a bug in it: ``python -m tests.soak.planted BUG MODULE [ARGUMENT ...]``."""

from __future__ import annotations

import runpy
import sys

from tests.soak.seeded import BUGS
from tests.support.planting import planted

if __name__ == "__main__":
    _, bug, *sys.argv = sys.argv
    with planted(BUGS[bug].seams):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
