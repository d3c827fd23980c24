"""The parts of this process. A forked child builds its own."""

from __future__ import annotations

import os
from datetime import timedelta

from celery.app import app_or_default

from dispatcher.bootstrap.parts import Parts
from dispatcher.celery_app import settings_of

_parts: dict[int, Parts] = {}
"""By process id. A forked child inherits its parent's entry and never touches it. There is no lock:
one that a thread of the parent held at the fork would stay taken in the child."""


def here() -> Parts:
    """Return the parts of this process, built when first asked for, by its Celery app's settings.

    Those are the environment's, unless the app was installed with others. A forked child builds
    its own. Raises InvalidSettings.
    """
    pid = os.getpid()
    if pid not in _parts:
        # Parts are empty until asked for, so a second thread may make one in vain: the first stays.
        _parts.setdefault(pid, Parts(settings_of(app_or_default())))
    return _parts[pid]


def stop_here() -> timedelta | None:
    """Begin no further send in this process. May be called in the handler of a signal.

    Return how long it may last until all that has begun is recorded, None where nothing was built.
    """
    parts = _parts.get(os.getpid())
    if parts is None:
        return None
    if "lanes" in vars(parts):
        parts.lanes.stop()
    return parts.settings.stop_grace


def finish_here() -> bool:
    """Wait for the hand-overs of this process that no task waits for; tell whether all ended."""
    parts = _parts.get(os.getpid())
    if parts is not None and "lanes" in vars(parts):
        return parts.lanes.finish()
    return True


def close_here() -> None:
    """Close the lines of this process to the providers, once it hands nothing over any more.

    Pending hooks are called; the folder of send logs is deleted if it is empty.
    """
    parts = _parts.get(os.getpid())
    if parts is not None:
        parts.close_transports()
        parts.close_hooks()
        parts.close_send_logs()
