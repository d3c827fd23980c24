"""The dispatcher's tables as models, to be read: the dispatcher alone writes them.

The fields read the columns as ``store/engines/types.py`` writes them. A message is changed by the
calls of :data:`dispatcher.django.dispatcher`, which keep rows, reservations and tasks in agreement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from dispatcher.django import project
from dispatcher.message import MAX_CAMPAIGN, MAX_EVENT, MAX_RECIPIENT, MAX_URL, Outcome, Status
from dispatcher.store.schema import MAX_DELAYED_BY, MAX_WISH, VOID
from dispatcher.times.clock import to_length_ms
from dispatcher.times.zones import MAX_ZONE

_CHANNEL = 63


class IdField(models.UUIDField):
    """A UUID; on MariaDB its 16 bytes."""

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        if connection.vendor != "mysql" or value is None:
            return super().get_db_prep_value(value, connection, prepared)
        read = self.to_python(value)
        return read.bytes if isinstance(read, UUID) else read

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
        instant = value if prepared else self.get_prep_value(value)
        if not isinstance(instant, datetime):
            return instant
        instant = instant.astimezone(UTC)  # a naive one is local time, which Django has set
        if connection.vendor == "sqlite":
            return instant.isoformat(" ", "milliseconds")[:23]
        return instant if connection.vendor == "postgresql" else instant.replace(tzinfo=None)

    def from_db_value(self, value: Any, _: Any, connection: Any) -> datetime | None:
        if value is None:
            return None
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        if instant.tzinfo is None and connection.vendor != "postgresql":
            return instant.replace(tzinfo=UTC)
        return instant.astimezone(UTC)

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


class _Stored(models.Manager[Any]):
    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().using(project.database_alias() or self._db)


class _Messages(_Stored):
    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().exclude(status=VOID)


def choices(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(str(name), str(name)) for name in names]


class Message(models.Model):
    """A message, with the fields of :class:`dispatcher.Message`."""

    id = IdField(primary_key=True)
    channel = models.CharField(max_length=_CHANNEL)
    recipient = models.CharField(max_length=MAX_URL)
    scope = models.CharField(max_length=MAX_RECIPIENT)
    body = StoredJSONField()
    send_at = InstantField()
    next_attempt_at = InstantField()
    expires_at = InstantField(null=True)
    status = models.CharField(max_length=9, choices=choices(Status))
    attempt_count = models.SmallIntegerField()
    max_attempts = models.SmallIntegerField()
    idempotency_key = models.CharField(max_length=MAX_RECIPIENT, null=True)
    created_at = InstantField()
    finished_at = InstantField(null=True)
    last_error = models.TextField(null=True)
    scopes = StoredJSONField(null=True)
    zone = models.CharField(max_length=MAX_ZONE, null=True)
    quiet_hours = models.TextField(null=True)
    on_unknown = models.CharField(max_length=5)
    expire_after = LengthField(null=True)
    asked_at = InstantField(null=True)
    trace = models.CharField(max_length=55, null=True)
    enqueued_at = InstantField(null=True)
    campaign = models.CharField(max_length=MAX_CAMPAIGN, null=True)
    priority = models.SmallIntegerField()
    delayed_by = models.CharField(max_length=MAX_DELAYED_BY, null=True)
    event = models.CharField(max_length=MAX_EVENT, null=True)
    wish = models.CharField(max_length=MAX_WISH, null=True)

    objects = _Messages()

    class Meta:
        managed = False
        verbose_name_plural = "messages"
        default_permissions = ("view",)
        permissions = (
            ("view_body", "Can see recipients, bodies and errors"),
            ("cancel_message", "Can cancel messages"),
            ("move_message", "Can move messages to another time"),
            ("retry_message", "Can retry failed messages"),
            ("release_message", "Can release and drop held messages"),
        )

    def __str__(self) -> str:
        return str(self.id)


class Attempt(models.Model):
    pk = models.CompositePrimaryKey("message_id", "token")
    message_id = IdField()
    token = models.IntegerField()
    started_at = InstantField()
    finished_at = InstantField(null=True)
    outcome = models.CharField(max_length=9, null=True, choices=choices(Outcome))
    error = models.TextField(null=True)
    receipt = models.TextField(null=True)

    objects = _Stored()

    class Meta:
        managed = False
        verbose_name_plural = "attempts"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.message_id} {self.token}"


class Suppression(models.Model):
    """A recipient who has opted out of a channel, or of all where ``channel`` is empty."""

    pk = models.CompositePrimaryKey("recipient", "channel")
    recipient = models.CharField(max_length=MAX_RECIPIENT)
    channel = models.CharField(max_length=_CHANNEL)
    created_at = InstantField()

    objects = _Stored()

    class Meta:
        managed = False
        verbose_name_plural = "suppressions"
        default_permissions = ("add", "delete", "view")

    def __str__(self) -> str:
        return self.channel or "all channels"
