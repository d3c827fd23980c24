"""The dispatcher as an app of Django: ``INSTALLED_APPS += ["dispatcher.django"]``.

``from dispatcher.django import dispatcher`` gives the project's :class:`~dispatcher.Dispatcher`,
with the settings of ``DISPATCHER`` and the database of ``DATABASES``. docs/django.md shows all.
"""

from __future__ import annotations

from dispatcher.django.email import EmailBackend
from dispatcher.django.project import ProjectDispatcher, dispatcher

__all__ = ["EmailBackend", "ProjectDispatcher", "dispatcher"]
