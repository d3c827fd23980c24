"""Access rights of files and folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PRIVATE_UMASK = 0o077
_FOLDER, _FILE, _OTHERS = 0o700, 0o600, 0o007


def open_to_others(path: Path) -> bool:
    """Whether other users may read or write this file or folder; False where there is none."""
    try:
        found = path.resolve(strict=True)
        if not stat.S_IMODE(found.stat().st_mode) & _OTHERS:
            return False
        return all(stat.S_IMODE(each.stat().st_mode) & 0o001 for each in found.parents)
    except OSError:
        return False


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, each for its owner alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=_FOLDER, exist_ok=True)


def close_to_others(paths: Iterable[Path]) -> None:
    """Remove the rights of other users from files, and from folders with all their contents.

    Files of other owners and vanished files are skipped. Links are not followed.
    """
    for path in paths:
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
                continue
            is_folder = stat.S_ISDIR(found.st_mode)
            if is_folder:
                close_to_others(path.iterdir())
            mode = stat.S_IMODE(found.st_mode)
            wanted = _FILE if stat.S_ISREG(found.st_mode) else _FOLDER
            if mode & ~wanted:
                path.chmod(mode & wanted)
