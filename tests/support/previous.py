"""The package as it was at an earlier revision, for tests that run two versions side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.settings import PREFIX, Settings
from tests.support.environment import ROOT
from tests.support.requiring import missing

REVISION = "DISPATCHER_TESTS_PREVIOUS"
"""The variable that names the revision; without it, it is the commit before the one checked out."""


def unpack_previous(folder: Path) -> None:
    """Unpack the earlier package and its migrations into ``folder``.

    Or skip, where the checkout has none, or where no migration leads from its schema to this one's.
    """
    named = os.environ.get(REVISION)
    if shutil.which("git") is None:
        missing("git", "git is not installed")
    revision = named or "HEAD~1"
    archive = _git("archive", "--format=tar", revision, "dispatcher", "migrations")
    if archive.returncode != 0:
        if named:
            pytest.fail(f"{REVISION}: {archive.stderr.decode().strip()}")
        missing("git", "this checkout has no commit before the one checked out")
    folder.mkdir()
    subprocess.run(["tar", "--extract", "-C", folder], input=archive.stdout, check=True)
    ours = ROOT / "migrations" / "versions"
    for migration in (folder / "migrations" / "versions").glob("*.py"):
        now = ours / migration.name
        if not now.exists() or now.read_bytes() != migration.read_bytes():
            pytest.skip(
                f"{migration.name} is another one at {revision}: nobody upgrades from there"
            )


def command_of_previous(folder: Path) -> list[str]:
    """Return what runs Python with the package in ``folder``, and the tests of this version.

    Settings that it does not have are taken from its environment.
    """
    python = [f"PYTHONPATH={folder}{os.pathsep}{ROOT}", sys.executable]
    names = "import dispatcher; print(*dispatcher.Settings.model_fields)"
    known = subprocess.run(
        ["env", *python, "-c", names], check=True, capture_output=True, text=True
    )
    added = sorted(Settings.model_fields.keys() - set(known.stdout.split()))
    return ["env", *(word for name in added for word in ("-u", f"{PREFIX}{name.upper()}")), *python]


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    # The files may belong to another user than the one who runs the tests.
    safe = ("-c", f"safe.directory={ROOT}")
    return subprocess.run(["git", *safe, *words], cwd=ROOT, check=False, capture_output=True)
