"""Events that messages follow, the event and the wished time of each message."""

from __future__ import annotations

from django.db import migrations

from dispatcher.django.migrations import migrate_store


class Migration(migrations.Migration):
    atomic = False
    dependencies = (("dispatcher", "0002_who_goes_first"),)
    operations = (migrations.RunPython(migrate_store),)
