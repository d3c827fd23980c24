"""The schedulers that ``end_to_end.py`` compares, one file each.

Each file has ``COMMANDS``, which start its processes, the first of them the worker, and
``opened(settings)``, which prepares the servers and yields a function that submits: it takes names
of messages and the instant at which they are due, and returns the names under which the sends are
written down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache

Submit = Callable[[Sequence[str], datetime], Sequence[str]]


def write_down(name: str) -> None:
    """Send a message: write its name and the instant to the file that LEDGER names."""
    os.write(_ledger(), f"{name} {time.time():.6f}\n".encode())


@cache
def _ledger() -> int:
    return os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
