"""Writes the versions that the targets ``test-lowest`` … of make install: ``make resolve``.

The lowest set has the lowest version of each library that ``pyproject.toml`` admits, the newest the
newest; both work on the oldest Python. The tools of the tests are not varied in the lowest set. The
set between them has the series in the middle, and needs Python 3.12, as Django 6.0 does.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FILES = {name: ROOT / f"constraints-{name}.txt" for name in ("lowest", "between", "newest")}
_NOTE = "# The versions of `make test-{}`, by `make resolve`. Versions only: no addresses.\n"
# celery[redis] leaves the version of kombu open; kombu[redis] names the versions of redis-py that
# it works with. Valkey is the server of the newest set.
_FURTHER = {
    "lowest": "kombu[redis]\n",
    "between": "celery==5.5.3\nredis==6.4.*\nsqlalchemy==2.0.*\ndjango==6.0.*\n",
    "newest": "kombu[redis]\nvalkeylite\n",
}


def resolved(name: str, folder: Path) -> str:
    """Return the pins of a set. Raises CalledProcessError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = "3.12" if name == "between" else project["requires-python"].removeprefix(">=")
    further, tools = folder / "further.in", folder / "tools.txt"
    further.write_text(_FURTHER[name])
    tools.write_text("\n".join(_pins_of(project["optional-dependencies"]["test"])))
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--upgrade"),
        *("--python-version", oldest, "--no-header", "--no-annotate", "--no-emit-index-url"),
        *("--extra", "test", "--universal", str(ROOT / "pyproject.toml"), str(further)),
    ]
    if name == "lowest":
        command += ["--resolution", "lowest-direct", "--constraint", str(tools)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return _NOTE.format(name) + done.stdout


def _pins_of(requirements: list[str]) -> list[str]:
    names = {canonicalize_name(Requirement(each).name) for each in requirements}
    pins = re.findall(r"^[\w.-]+==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return [each for each in pins if canonicalize_name(Requirement(each).name) in names]


def main() -> None:
    """Write the files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, path in FILES.items():
            path.write_text(resolved(name, Path(folder)))


if __name__ == "__main__":
    main()
