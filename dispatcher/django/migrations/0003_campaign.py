"""The campaign of a message."""

from __future__ import annotations

from django.db import migrations, models

from dispatcher.django.schema import MigrateStore


class Migration(migrations.Migration):
    """Revision 0003."""

    atomic = False
    dependencies = (("dispatcher", "0002_http_api"),)
    operations = (
        MigrateStore(),
        migrations.AddField("message", "campaign", models.CharField(max_length=64, null=True)),
    )
