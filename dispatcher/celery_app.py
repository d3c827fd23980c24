"""What ``celery -A dispatcher.celery_app worker`` and ``… beat`` find: :data:`app`.

Its first use makes it from the settings of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.celery.configuration import create_app
from dispatcher.settings import Settings

if TYPE_CHECKING:
    from celery import Celery


def __getattr__(name: str) -> Celery:
    if name != "app":
        raise AttributeError(name)
    app = create_app(Settings.load())
    globals()["app"] = app
    return app
