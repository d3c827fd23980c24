"""The tables of the first release.

The models are unmanaged: their state is always that of the models themselves, so a further
migration names no column.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.migrations.state import ModelState

from dispatcher.django.migrations import migrate_store
from dispatcher.django.models import Attempt, Message, Suppression


def _created(model: Any) -> migrations.CreateModel:
    state = ModelState.from_model(model)
    return migrations.CreateModel(state.name, [*state.fields.items()], state.options)


class Migration(migrations.Migration):
    initial = True
    atomic = False
    dependencies = ()
    operations = (
        migrations.RunPython(migrate_store),
        *(_created(model) for model in (Message, Attempt, Suppression)),
    )
