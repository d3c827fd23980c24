"""Keeps what libraries would write into the log, while they carry a message, out of it.

At DEBUG they write headers, paths and URLs: addresses, tokens and, some of them, the message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()


def _may_write(_: logging.LogRecord) -> bool:
    """Whether this thread is outside of every :func:`quiet`."""
    return not getattr(_here, "depth", 0)


def silence(*libraries: str) -> None:
    """Let :func:`quiet` hold for the loggers of these libraries that there are by now."""
    for name in [*libraries, *logging.root.manager.loggerDict]:
        if name.split(".")[0] in libraries:
            logging.getLogger(name).addFilter(_may_write)  # once, however often


@contextmanager
def quiet() -> Iterator[None]:
    """Let this thread write nothing to the loggers that were silenced. Other threads do."""
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
