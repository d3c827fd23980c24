"""The package as it was at an earlier revision, for tests that run two versions side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from dispatcher.settings import PREFIX, Settings
from tests.support.environment import ROOT
from tests.support.requiring import missing

REVISION = "DISPATCHER_TESTS_PREVIOUS"
"""The variable that names the revision; without it, it is the commit before the one checked out."""
_PARTS = ("dispatcher", "migrations")


@dataclass(frozen=True)
class Previous:
    """A folder with the earlier package and its migrations. The tests in use are today's."""

    revision: str
    folder: Path

    def command(self, *words: str) -> list[str]:
        """Return what runs Python with the earlier package, and the tests of this version.

        Settings that it does not have are taken from its environment.
        """
        return ["env", *self._unset, *self._python, *words]

    @property
    def _python(self) -> tuple[str, str]:
        return f"PYTHONPATH={self.folder}{os.pathsep}{ROOT}", sys.executable

    @cached_property
    def _unset(self) -> list[str]:
        names = "import dispatcher; print(*dispatcher.Settings.model_fields)"
        asked = ["env", *self._python, "-c", names]
        known = subprocess.run(asked, check=True, capture_output=True).stdout.decode().split()
        added = sorted(Settings.model_fields.keys() - set(known))
        return [word for name in added for word in ("-u", f"{PREFIX}{name.upper()}")]

    def edited_migrations(self) -> list[str]:
        """Return the migrations of both versions whose text differs.

        No migration leads from the earlier schema to this one if there are any.
        """
        theirs = self.folder / "migrations" / "versions"
        ours = ROOT / "migrations" / "versions"
        return sorted(
            each.name
            for each in theirs.glob("*.py")
            if not (ours / each.name).exists()
            or (ours / each.name).read_bytes() != each.read_bytes()
        )


def previous(folder: Path) -> Previous:
    """Unpack the earlier version into ``folder``. Or skip where the checkout does not have it."""
    named = os.environ.get(REVISION)
    if shutil.which("git") is None:
        missing("git", "git is not installed")
    found = _git("rev-parse", "--verify", "--quiet", f"{named or 'HEAD~1'}^{{commit}}")
    if found.returncode != 0:
        if named:
            pytest.fail(f"{REVISION}: this checkout has no revision {named}")
        missing("git", "this checkout has no commit before the one checked out")
    revision = found.stdout.decode().strip()
    archive = _git("archive", "--format=tar", revision, *_PARTS)
    if archive.returncode != 0:
        pytest.fail(f"git archive {revision}: {archive.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "--extract", "-C", folder], input=archive.stdout, check=True)
    return Previous(revision, folder)


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    # The files may belong to another user than the one who runs the tests.
    safe: Sequence[str] = ("-c", f"safe.directory={ROOT}")
    return subprocess.run(["git", *safe, *words], cwd=ROOT, check=False, capture_output=True)
