"""Threads of notifications and signs of life. Without them a process does its work all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

log = logging.getLogger(__name__)


def started(run: Callable[[], None], name: str) -> Thread | None:
    """Return a thread that runs this, None where the system gives no thread now: try again later.

    A submit that is stored must not fail because its notification cannot be sent.
    """
    thread = Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning(
            "the thread of the %s did not start, and is tried again at its next use: %s",
            name,
            error,
        )
        return None
    return thread
