"""Access rights of files and folders."""

from __future__ import annotations

from pathlib import Path

PRIVATE_UMASK = 0o077
_FOLDER, _OTHERS = 0o700, 0o007


def open_to_others(path: Path) -> bool:
    """Whether other users may read or write this file or folder; False where there is none."""
    try:
        file = path.resolve(strict=True)
        if not file.stat().st_mode & _OTHERS:
            return False
        return all(folder.stat().st_mode & 0o001 for folder in file.parents)
    except OSError:
        return False


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, each for its owner alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=_FOLDER, exist_ok=True)
