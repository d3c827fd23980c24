"""The ``App`` of this worker process. A forked child makes its own."""

from __future__ import annotations

import os

from celery.app import app_or_default

from dispatcher.app import App
from dispatcher.celery_app import settings_of

_apps: dict[int, App] = {}
"""By process id. A forked child inherits its parent's entry and never uses it. There is no lock: if
a thread of the parent had it at the fork, it would stay locked in the child."""


def here() -> App:
    """Return the app of this process; the first call makes it.

    Its settings are those given to ``install``, else those of the environment. Raises
    InvalidSettings.
    """
    pid = os.getpid()
    if pid not in _apps:
        # Two threads may each make an App; the first one stays. An App has no parts yet.
        _apps.setdefault(pid, App(settings_of(app_or_default())))
    return _apps[pid]


def made_here() -> App | None:
    """Return the app of this process, None before the first call of :func:`here`."""
    return _apps.get(os.getpid())
