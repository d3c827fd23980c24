"""The parts of this process. A forked child builds its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import RLock

from celery.app import app_or_default

from dispatcher.bootstrap.parts import Parts
from dispatcher.celery_app import settings_of


@dataclass(slots=True)
class _Here:
    pid: int = 0
    parts: Parts | None = None


_here = _Here()
_lock = RLock()


def here() -> Parts:
    """Return the parts of this process, built when first asked for, by its Celery app's settings.

    Those are the environment's, unless the app was installed with others. A forked child builds
    its own. Raises InvalidSettings.
    """
    with _lock:
        if _here.parts is None or _here.pid != os.getpid():
            _here.parts = Parts(settings_of(app_or_default()))
            _here.pid = os.getpid()
        return _here.parts


def stop_here() -> None:
    """Begin no further hand-over in this process. May be called in the handler of a signal."""
    parts = _here.parts
    if parts is not None and _here.pid == os.getpid() and "lanes" in vars(parts):
        parts.lanes.stop()


def finish_here() -> bool:
    """Wait for the hand-overs of this process that no task waits for; tell whether all ended."""
    parts = _here.parts
    if parts is not None and _here.pid == os.getpid() and "lanes" in vars(parts):
        return parts.lanes.finish()
    return True


def close_here() -> None:
    """Close the lines of this process to the providers, once it hands nothing over any more.

    The hooks are told what waits for them.
    """
    parts = _here.parts
    if parts is not None and _here.pid == os.getpid():
        parts.close_transports()
        parts.close_hooks()
