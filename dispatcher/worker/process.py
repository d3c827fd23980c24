"""The app of this worker process. A forked child builds its own."""

from __future__ import annotations

import os

from celery.app import app_or_default

from dispatcher.app import App
from dispatcher.celery_app import settings_of

_apps: dict[int, App] = {}
"""By process id. A forked child inherits its parent's entry and never touches it. There is no lock:
one that a thread of the parent held at the fork would stay taken in the child."""


def here() -> App:
    """Return the app of this process, made when first asked for, by its Celery app's settings.

    Those are the environment's, unless the Celery app was installed with others. A forked child
    makes its own. Raises InvalidSettings.
    """
    pid = os.getpid()
    if pid not in _apps:
        # An app is empty until asked for, so a second thread may make one in vain: the first stays.
        _apps.setdefault(pid, App(settings_of(app_or_default())))
    return _apps[pid]


def made_here() -> App | None:
    """Return the app of this process if it was made already."""
    return _apps.get(os.getpid())
