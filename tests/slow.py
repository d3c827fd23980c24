"""Run a command with half of the processor: ``python -m tests.slow COMMAND …``.

One busy loop for each core runs beside it, and ends with this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CORES = len(os.sched_getaffinity(0))
# It ends when its standard input does: also when this process is killed.
_LOOP = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True:
    pass
"""


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
    with busy_loops():
        sys.stderr.write(f"half of {_CORES} cores\n")
        return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
