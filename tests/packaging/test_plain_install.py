"""What is installed without an extra is enough to submit, and to run a worker and a beat on Redis.

The development tools bring libraries along that a plain installation does not have.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from pkgutil import walk_packages

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dispatcher import cli

ROOT = Path(__file__).parents[2]
LOADED = (
    "kombu.transport.redis",
    "celery.bin.worker",
    "celery.bin.beat",
    "dispatcher.worker.tasks",
    "dispatcher.broker.reconnection",
    "dispatcher.embedded",
    "dispatcher.cli",
    *(each.name for each in walk_packages(cli.__path__, "dispatcher.cli.")),
)
_HIDE = """
import importlib, sys
from importlib.abc import MetaPathFinder
hidden, loaded = (set(words.split(",")) for words in sys.argv[1:])
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
for each in sorted(loaded):
    importlib.import_module(each)
"""


def _plainly_installed() -> set[str]:
    """Return the distributions that are installed with the dispatcher and no extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    left = [(Requirement(line), "") for line in project["dependencies"]]
    while left:
        wanted, extra = left.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        for part in {"", *wanted.extras} - ({""} if name in found else set()):
            try:
                left += [(Requirement(line), part) for line in requires(name) or ()]
            except PackageNotFoundError:  # of another platform
                continue
        found.add(name)
    return found


def test_redis_as_the_broker_needs_no_extra() -> None:
    plain = _plainly_installed()
    hidden = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(each) for each in owners} & {*plain, "dispatcher"}
    }
    assert {"pytest", "limits"} <= hidden, "what only the tools need would not be hidden"
    ran = subprocess.run(
        [sys.executable, "-c", _HIDE, ",".join(hidden), ",".join(LOADED)],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
