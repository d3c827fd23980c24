"""A priority and what delays it for each message; quotas and limits of single scopes."""

from __future__ import annotations

from django.db import migrations

from dispatcher.django.migrations import migrate_store


class Migration(migrations.Migration):
    atomic = False
    dependencies = (("dispatcher", "0001_initial"),)
    operations = (migrations.RunPython(migrate_store),)
