"""The tables of the HTTP API and of pauses."""

from __future__ import annotations

from django.db import migrations

from dispatcher.django.schema import MigrateStore


class Migration(migrations.Migration):
    """Revision 0002."""

    atomic = False
    dependencies = (("dispatcher", "0001_initial"),)
    operations = (MigrateStore(),)
