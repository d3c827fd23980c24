"""A folder for one test. Whatever works in it when the test ends is ended, and it is removed.

A process belongs to the folder when its working directory lies inside, as that of every process
does that a test starts here, and of those which they start. A guard does the same when the test
run itself is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_until

_GUARD = """
for each in /proc/[0-9]*; do
  case "$(readlink "$each/cwd" 2>/dev/null)" in
    "$1"|"$1/"*) kill -9 "${each#/proc/}" ;;
  esac
done
rm -rf "$1"
"""


def guard(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Let a shell run a script as soon as its standard input closes, so also when this run dies."""
    command = ["/bin/sh", "-c", f"read _\n{script}", "guard", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", start_new_session=True)


@contextmanager
def workplace() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dispatcher-work-")).resolve()
    watch = guard(_GUARD, str(folder))
    try:
        yield folder
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        watch.kill()
        watch.communicate()


def inhabitants(folder: Path) -> dict[int, str]:
    commands = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                at = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
                if Path(at).is_relative_to(folder):
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
    return {pid: command.replace("\0", " ") for pid, command in commands.items()}


def end_all(folder: Path) -> None:
    def none_left() -> bool:
        for pid in inhabitants(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not inhabitants(folder)

    wait_until(none_left)
