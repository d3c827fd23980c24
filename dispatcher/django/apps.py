"""The app: the names of its tables, and its checks."""

from __future__ import annotations

from django.apps import AppConfig

from dispatcher.django import configuration
from dispatcher.errors import InvalidSettings


class DispatcherConfig(AppConfig):
    """The app ``dispatcher``. Nothing connects before the first call."""

    name = "dispatcher.django"
    label = "dispatcher"
    verbose_name = "Dispatcher"

    def ready(self) -> None:
        from dispatcher.django import checks  # noqa: F401, PLC0415 - registers them

        try:
            settings = configuration.load()
        except InvalidSettings:
            return  # a check says so
        schema = settings.table_schema
        for model in self.get_models():
            name = f"{settings.table_prefix}{model._meta.verbose_name_plural}"
            # A schema in the form that Django quotes right.
            model._meta.db_table = f'{schema}"."{name}' if schema else name
