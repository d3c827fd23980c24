"""The app: the names of its tables, and its checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.db import models

from dispatcher.django import configuration
from dispatcher.errors import InvalidSettings


class DispatcherConfig(AppConfig):
    """The app ``dispatcher``. Nothing connects before the first call."""

    name = "dispatcher.django"
    label = "dispatcher"
    verbose_name = "Dispatcher"

    def ready(self) -> None:
        """Name the tables as the settings do, and register the checks."""
        from dispatcher.django import checks  # noqa: F401, PLC0415 - registers them

        try:
            settings = configuration.load()
        except InvalidSettings:
            return  # a check says so
        for model in self.get_models():
            _name_table(model, settings.table_prefix, settings.table_schema)


def _name_table(model: type[models.Model], prefix: str, schema: str) -> None:
    """Give a model's table the prefix, and the schema in the form that Django quotes right."""
    name = f"{prefix}{model._meta.verbose_name_plural}"
    model._meta.db_table = f'{schema}"."{name}' if schema else name
