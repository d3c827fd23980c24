"""A Django project in one file: it takes orders, and reminds customers an hour before the pickup.

The dispatcher uses the database of ``DATABASES``, and Django's ``migrate`` creates its tables::

    pip install django
    python -m examples.django_shop migrate --run-syncdb
    python -m examples.django_shop runserver
    celery -A examples.django_shop worker    # and another one with: beat

A submit cannot join a transaction of Django's (docs/existing-project.md explains why). It comes
after the commit, under the order's own idempotency key. :func:`remind_the_rest` submits reminders
that are missing because a process died or Redis was unavailable; it is safe to repeat.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

import django
from celery import Celery
from django.apps import AppConfig, apps
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.db import models, transaction
from django.db.models.signals import post_migrate
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.utils import timezone
from sqlalchemy import URL

from dispatcher import Dispatcher, DispatcherError, Settings, install
from dispatcher.store import Database, migrate

HOUR = timedelta(hours=1)


def database_url(database: Mapping[str, Any]) -> str:
    """Return the ``database_url`` for an entry of ``DATABASES``."""
    kind = database["ENGINE"].rpartition(".")[2].replace("sqlite3", "sqlite")
    return URL.create(
        kind,
        username=database.get("USER") or None,
        password=database.get("PASSWORD") or None,
        host=database.get("HOST") or None,
        port=int(database["PORT"]) if database.get("PORT") else None,
        database=str(database["NAME"]),
    ).render_as_string(hide_password=False)


class ShopConfig(AppConfig):
    """Creates the project's dispatcher, which connects when it is first used."""

    name = __name__
    label = "shop"

    def import_models(self) -> None:
        """Let Django find the models, which a larger project has in ``models.py``."""
        super().import_models()
        self.models_module = sys.modules[__name__]

    def ready(self) -> None:
        """Create the dispatcher from Django's settings."""
        url = database_url(settings.DATABASES["default"])
        self.settings = Settings.load(database_url=url)
        self.dispatcher = Dispatcher(self.settings)
        post_migrate.connect(self.make_tables, sender=self)

    def make_tables(self, **_: object) -> None:
        """Migrate the dispatcher's tables after Django's."""
        database = Database.of(self.settings)
        migrate(database)
        database.close()


settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SHOP_DATABASE", "shop.db"),
        }
    },
    INSTALLED_APPS=[f"{__name__}.ShopConfig"],
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()
shop = cast("ShopConfig", apps.get_app_config("shop"))

celery = Celery("shop")
install(celery, shop.settings)


class Order(models.Model):
    """An order. ``message_id`` is None until its reminder is submitted."""

    email: models.TextField[str, str] = models.TextField()
    pickup_at: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    message_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)


def remind(order: Order) -> None:
    """Submit the reminder of a committed order. Safe to repeat: the key is the same."""
    message = shop.dispatcher.submit(
        channel="email",
        recipient=order.email,
        body={"text": f"Order {order.pk} can be picked up in an hour."},
        send_at=order.pickup_at - HOUR,
        on_conflict="shift",
        idempotency_key=f"order-{order.pk}",
    )
    Order.objects.filter(pk=order.pk).update(message_id=message.id)


def remind_the_rest() -> int:
    """Submit the missing reminders, as a periodic task would; return how many."""
    missing = Order.objects.filter(message_id=None, pickup_at__gt=timezone.now() + HOUR)
    for order in missing:
        remind(order)
    return len(missing)


def take_order(request: HttpRequest) -> JsonResponse:
    """Store an order and submit its reminder after the commit."""
    asked = json.loads(request.body)
    pickup_at = datetime.fromisoformat(asked["pickup_at"])
    answer: dict[str, Any] = {}
    try:
        with transaction.atomic():
            order = Order.objects.create(email=asked["email"], pickup_at=pickup_at)
            transaction.on_commit(partial(remind, order))
    except DispatcherError as error:  # the order is stored; remind_the_rest() submits later
        answer["no_reminder_yet"] = str(error)
    return JsonResponse({"order": order.pk, **answer}, status=201)


urlpatterns = [path("orders", take_order)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
