"""The columns of the dispatcher's tables as fields (``store/engines/types.py``)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from dispatcher.times.lengths import to_length_ms


class IdField(models.UUIDField):
    """A UUID; on MariaDB its 16 bytes."""

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        if connection.vendor != "mysql" or value is None:
            return super().get_db_prep_value(value, connection, prepared)
        found = self.to_python(value)
        return found.bytes if isinstance(found, UUID) else found

    def from_db_value(self, value: Any, *_: Any) -> UUID | None:
        if isinstance(value, bytes):
            return UUID(bytes=value)
        return value if value is None or isinstance(value, UUID) else UUID(value)

    def get_internal_type(self) -> str:
        return type(self).__name__  # a type that no database converts in its own way


class InstantField(models.DateTimeField):
    """An aware UTC datetime; on SQLite text with milliseconds."""

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        found = value if prepared else self.get_prep_value(value)
        if not isinstance(found, datetime):
            return found
        instant = found.astimezone(UTC)  # a naive one is local time, which Django has set
        if connection.vendor == "sqlite":
            return instant.isoformat(" ", "milliseconds")[:23]
        return instant if connection.vendor == "postgresql" else instant.replace(tzinfo=None)

    def from_db_value(self, value: Any, _: Any, connection: Any) -> datetime | None:
        if value is None:
            return None
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        if found.tzinfo is None and connection.vendor != "postgresql":
            return found.replace(tzinfo=UTC)
        return found.astimezone(UTC)

    def get_internal_type(self) -> str:
        return type(self).__name__  # a type that no database converts in its own way


class LengthField(models.BigIntegerField):
    """A timedelta, in whole milliseconds."""

    def get_prep_value(self, value: Any) -> Any:
        return to_length_ms(value) if isinstance(value, timedelta) else value

    def from_db_value(self, value: Any, *_: Any) -> timedelta | None:
        return None if value is None else timedelta(milliseconds=value)


class StoredJSONField(models.JSONField):
    """JSON, which some drivers have read already."""

    def from_db_value(self, value: Any, *_: Any) -> Any:
        return json.loads(value) if isinstance(value, str | bytes) else value
