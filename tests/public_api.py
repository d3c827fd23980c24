"""Tells what breaks the public interface: ``python -m tests.public_api [REVISION]``.

Compares with the last release, or with a revision. Each break must be named in ``UPGRADING.md``.
Public is what the packages below export.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
PACKAGES = ("", ".limiters", ".transports", ".web", ".testing")


def broken(before: griffe.Module, now: griffe.Module) -> Iterator[tuple[str, str]]:
    """Yield the public name of each object that breaks its users, and how."""
    public = dict(_exported(before))
    for each in griffe.find_breaking_changes(before, now):
        path = each.obj.canonical_path
        for home, name in public.items():
            if path == home or path.startswith(f"{home}."):
                yield name + path[len(home) :], each.explain(griffe.ExplanationStyle.ONE_LINE)
                break
    for home, name in public.items():
        module, _, last = name.rpartition(".")
        if last not in _module(now, module).all_members:
            yield name, f"{home} is no longer exported"


def _exported(package: griffe.Module) -> Iterator[tuple[str, str]]:
    for part in PACKAGES:
        name = f"{package.path}{part}"
        if part[1:] and part[1:] not in package.members:
            continue
        module = _module(package, name)
        for exported in sorted(str(each) for each in module.exports or ()):
            yield module[exported].canonical_path, f"{name}.{exported}"


def _module(package: griffe.Module, name: str) -> griffe.Module:
    found = package[name.partition(".")[2]] if "." in name else package
    if not isinstance(found, griffe.Module):
        raise TypeError(f"{name} is no module")
    return found


def last_release() -> str:
    """Return the last tag of a version, empty where there is none."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def main() -> None:
    """Print the breaks that ``UPGRADING.md`` does not name; exit with 1 where there are some."""
    revision = sys.argv[1] if len(sys.argv) > 1 else last_release()
    if not revision:
        sys.stdout.write("no release yet: the public interface is compared with none\n")
        return
    before = griffe.load_git("dispatcher", ref=revision, repo=ROOT, resolve_aliases=True)
    now = griffe.load("dispatcher", search_paths=[ROOT], resolve_aliases=True)
    if not (isinstance(before, griffe.Module) and isinstance(now, griffe.Module)):
        raise TypeError("dispatcher is no module")
    told = (ROOT / "UPGRADING.md").read_text()
    found = [(name, how) for name, how in broken(before, now) if f"`{name}`" not in told]
    sys.stdout.writelines(f"{name}: {how}\n" for name, how in found)
    if found:
        sys.exit(f"breaks users of {revision}: name each in UPGRADING.md, or keep it")


if __name__ == "__main__":
    main()
