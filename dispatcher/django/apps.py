"""The app: the names of its tables, and its system checks.

The settings are checked at every ``check``, the doctor's findings at ``--deploy``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Warned

from dispatcher.app import App
from dispatcher.django import project
from dispatcher.errors import InvalidSettings
from dispatcher.operations.checks import Level
from dispatcher.settings import Settings
from dispatcher.store.engines import engine_of
from dispatcher.transports import close_all, load
from dispatcher.transports.base import find

TAG = "dispatcher"
_KINDS = {Level.ERROR: Error, Level.WARNING: Warned}


class DispatcherConfig(AppConfig):
    """The app ``dispatcher``. Nothing connects before the first call."""

    name = "dispatcher.django"
    label = "dispatcher"
    verbose_name = "Dispatcher"

    def ready(self) -> None:
        try:
            settings = project.load_settings()
        except InvalidSettings:
            return  # a check says so
        schema = settings.table_schema
        for model in self.get_models():
            name = f"{settings.table_prefix}{model._meta.verbose_name_plural}"
            # A schema in the form that Django quotes right.
            model._meta.db_table = f'{schema}"."{name}' if schema else name


@register(TAG)
def check_settings(**_: Any) -> Sequence[CheckMessage]:
    """Return what is wrong with the settings, options and templates of channels. Asks no server.

    A database in memory is left to the first submit: most tests of a project submit nothing.
    """
    try:
        if project.is_in_memory_here():
            settings = project.without_djangos_database()
        else:
            settings = project.load_settings()
        engine_of(settings.database_url)
        project.email_channel()
    except InvalidSettings as error:
        return [Error(str(error), id="dispatcher.settings")]
    return [*_wrong_channels(settings), *_wrong_templates(settings)]


def _wrong_channels(settings: Settings) -> Iterator[CheckMessage]:
    """Yield an error for each channel whose options its transport refuses.

    One that cannot be imported is a warning: a process that only submits needs none.
    """
    for name, channel in settings.channels.items():
        try:
            find(name, channel.transport)
        except InvalidSettings as error:
            yield Warned(str(error), id="dispatcher.channels")
            continue
        try:
            close_all([load(name, channel, settings)])
        except InvalidSettings as error:
            yield Error(str(error), id="dispatcher.channels")
        except Exception as error:  # noqa: BLE001 - it may raise anything, secrets in its text
            problem = f"the transport of channel {name} raised {type(error).__name__}"
            yield Error(problem, id="dispatcher.channels")


def _wrong_templates(settings: Settings) -> Iterator[CheckMessage]:
    with closing(App(settings)) as app:
        errors = app.templates.problems().values()
    yield from (Error(str(error), id="dispatcher.templates") for error in errors if error)


@register(TAG, deploy=True)
def check_servers(**_: Any) -> Sequence[CheckMessage]:
    """Ask every server, and return the errors and warnings of ``dispatcher doctor``."""
    try:
        with closing(App(project.load_settings())) as app:
            findings = app.doctor().examine().findings
    except InvalidSettings:
        return []  # the other check, or the first submit, says so
    return [
        _KINDS[finding.level](finding.found, hint=finding.remedy, id=f"dispatcher.{finding.check}")
        for finding in findings
        if finding.level in _KINDS
    ]
