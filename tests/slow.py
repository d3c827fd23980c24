"""Run a command with half of the processor: ``python -m tests.slow COMMAND …``.

Where this user may make a control group, the command runs in one. Elsewhere one busy loop for each
core runs beside it. Both end with this process. A control group does not limit servers that ran
before, such as MariaDB and RabbitMQ; the busy loops do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_CORES = len(os.sched_getaffinity(0))
_PERIOD_US = 100_000
_QUOTA_US = _PERIOD_US * _CORES // 2
_ROOT = Path("/sys/fs/cgroup")
# It ends when its standard input does: also when this process is killed.
_LOOP = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True:
    pass
"""


@contextmanager
def half() -> Iterator[str]:
    """Limit this process and those that it starts to half of the processor; yield the means."""
    with ExitStack() as stack:
        for parent, limit in (
            (_ROOT, {"cpu.max": f"{_QUOTA_US} {_PERIOD_US}"}),
            (_ROOT / "cpu", {"cpu.cfs_period_us": _PERIOD_US, "cpu.cfs_quota_us": _QUOTA_US}),
        ):
            with suppress(OSError):
                stack.enter_context(_group(parent, limit))
                means = f"a control group in {parent}"
                break
        else:
            stack.enter_context(busy_loops())
            means = f"{_CORES} busy loops"
        yield means


@contextmanager
def _group(parent: Path, limit: Mapping[str, object]) -> Iterator[None]:
    """Be in a control group with a limit. Raises OSError where there can be none."""
    if not (parent / "cgroup.procs").exists():
        raise FileNotFoundError(parent)
    group = parent / f"dispatcher-slow-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limit.items():
            if not (group / name).exists():
                raise FileNotFoundError(name)
            (group / name).write_text(str(value))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        with suppress(OSError):  # what ends just now may still count
            group.rmdir()


@contextmanager
def busy_loops() -> Iterator[None]:
    """Keep every core busy beside what runs."""
    loops = [
        subprocess.Popen([sys.executable, "-c", _LOOP], stdin=subprocess.PIPE)
        for _ in range(_CORES)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main(command: list[str]) -> int:
    """Run it to its end; return how it ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with half() as means:
        sys.stderr.write(f"half of {_CORES} cores, by {means}\n")
        return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
