"""The tables of the first release."""

from __future__ import annotations

from django.db import migrations, models

from dispatcher.django.models import IdField, InstantField, LengthField, StoredJSONField
from dispatcher.django.schema import migrate_store

_STATUSES = ("scheduled", "sending", "sent", "failed", "expired", "cancelled", "held")
_OF_STATUS = [(status, status) for status in _STATUSES]
_OF_OUTCOME = [(each, each) for each in ("sent", "temporary", "permanent", "unknown")]


class Migration(migrations.Migration):
    initial = True
    atomic = False
    dependencies = ()
    operations = (
        migrations.RunPython(migrate_store),
        migrations.CreateModel(
            "Message",
            [
                ("id", IdField(primary_key=True, serialize=False)),
                ("channel", models.CharField(max_length=63)),
                ("recipient", models.CharField(max_length=2048)),
                ("scope", models.CharField(max_length=255)),
                ("body", StoredJSONField()),
                ("send_at", InstantField()),
                ("next_attempt_at", InstantField()),
                ("expires_at", InstantField(null=True)),
                ("status", models.CharField(max_length=9, choices=_OF_STATUS)),
                ("attempt_count", models.SmallIntegerField()),
                ("max_attempts", models.SmallIntegerField()),
                ("idempotency_key", models.CharField(max_length=255, null=True)),
                ("created_at", InstantField()),
                ("finished_at", InstantField(null=True)),
                ("last_error", models.TextField(null=True)),
                ("scopes", StoredJSONField(null=True)),
                ("zone", models.CharField(max_length=63, null=True)),
                ("quiet_hours", models.TextField(null=True)),
                ("on_unknown", models.CharField(max_length=5)),
                ("expire_after", LengthField(null=True)),
                ("asked_at", InstantField(null=True)),
                ("trace", models.CharField(max_length=55, null=True)),
                ("enqueued_at", InstantField(null=True)),
                ("campaign", models.CharField(max_length=64, null=True)),
            ],
            {
                "managed": False,
                "verbose_name_plural": "messages",
                "default_permissions": ("view",),
                "permissions": (
                    ("view_body", "Can see recipients, bodies and errors"),
                    ("cancel_message", "Can cancel messages"),
                    ("move_message", "Can move messages to another time"),
                    ("retry_message", "Can retry failed messages"),
                    ("release_message", "Can release and drop held messages"),
                ),
            },
        ),
        migrations.CreateModel(
            "Attempt",
            [
                ("pk", models.CompositePrimaryKey("message_id", "token", serialize=False)),
                ("message_id", IdField()),
                ("token", models.IntegerField()),
                ("started_at", InstantField()),
                ("finished_at", InstantField(null=True)),
                ("outcome", models.CharField(max_length=9, null=True, choices=_OF_OUTCOME)),
                ("error", models.TextField(null=True)),
                ("receipt", models.TextField(null=True)),
            ],
            {"managed": False, "verbose_name_plural": "attempts", "default_permissions": ()},
        ),
        migrations.CreateModel(
            "Suppression",
            [
                ("pk", models.CompositePrimaryKey("recipient", "channel", serialize=False)),
                ("recipient", models.CharField(max_length=255)),
                ("channel", models.CharField(max_length=63)),
                ("created_at", InstantField()),
            ],
            {
                "managed": False,
                "verbose_name_plural": "suppressions",
                "default_permissions": ("add", "delete", "view"),
            },
        ),
    )
