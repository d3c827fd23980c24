"""Secrets that no log may tell, looked for in every record of every test, at DEBUG."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

BODY = "See you at nine"
"""The text that tests send where they do not care which."""
_CANARIES = (BODY, "canary-", "hunter2")
_OF_TESTS = ("mail.log", "httpx2")
"""Loggers of what tests play: mail servers write what they receive, clients where they call."""


class _Watch(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_OF_TESTS):
            return
        told = f"{record.getMessage()} {vars(record)}"
        if record.exc_info and record.exc_info[0] is not None:
            told += "".join(traceback.format_exception(*record.exc_info))
        self.leaks += [f"{record.name}: {canary}: {told}" for canary in _CANARIES if canary in told]


def log_everything() -> None:
    """Let every logger speak whose level nobody sets: the canaries see what any user may log."""
    logging.getLogger().setLevel(logging.DEBUG)


@contextmanager
def watched() -> Iterator[list[str]]:
    watch = _Watch()
    root = logging.getLogger()
    root.addHandler(watch)
    try:
        yield watch.leaks
    finally:
        root.removeHandler(watch)
