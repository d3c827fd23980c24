"""A Django project in one file: it takes orders, and reminds customers an hour before the pickup.

The order and its reminder are stored in one transaction: both or neither. ``migrate`` makes the
tables of both, the admin shows the messages, and ``send_mail`` books::

    pip install '<path of the clone>[django]'
    export DISPATCHER_REDIS_URL=redis://127.0.0.1/0    # of a server that runs; in each shell
    python -m examples.django_shop migrate --run-syncdb
    python -m examples.django_shop createsuperuser
    python -m examples.django_shop runserver
    celery -A examples.django_shop worker    # and another one with: beat
    curl localhost:8000/orders --json '{
      "email": "ada@example.org", "pickup_at": "2027-03-01T18:00+01:00"}'
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timedelta
from uuid import UUID

import django
from celery import Celery
from django.apps import AppConfig
from django.conf import settings
from django.core.mail import send_mail
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.db import models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from dispatcher import DispatcherError, install
from dispatcher.django import dispatcher

HOUR = timedelta(hours=1)


class ShopConfig(AppConfig):
    """The shop. A larger project has its models in ``models.py``."""

    name = __name__
    label = "shop"

    def import_models(self) -> None:
        """Let Django find the models."""
        super().import_models()
        self.models_module = sys.modules[__name__]


settings.configure(
    SECRET_KEY=os.environ.get("SHOP_SECRET_KEY", "of the example alone"),
    DEBUG=os.environ.get("SHOP_DEBUG") == "1",
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SHOP_DATABASE", "shop.db"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    },
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.staticfiles",
        "dispatcher.django",
        f"{__name__}.ShopConfig",
    ],
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    ROOT_URLCONF=__name__,
    STATIC_URL="static/",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DEFAULT_FROM_EMAIL="shop@shop.example",
    EMAIL_BACKEND="dispatcher.django.EmailBackend",
    USE_TZ=True,
    DISPATCHER={
        "channels": {"email": {"transport": "console", "quiet_hours": "21:00-08:00"}},
        "zone": "Europe/Berlin",
    },
)
django.setup()

celery = Celery("shop")
install(celery, dispatcher.settings)


class Order(models.Model):
    """An order, and the message that reminds of it."""

    email: models.TextField[str, str] = models.TextField()
    pickup_at: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    message_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)


def take_order(request: HttpRequest) -> JsonResponse:
    """Store an order and its reminder together, and confirm it by e-mail."""
    asked = json.loads(request.body)
    pickup_at = datetime.fromisoformat(asked["pickup_at"])
    try:
        with transaction.atomic():
            order = Order.objects.create(email=asked["email"], pickup_at=pickup_at)
            reminder = dispatcher.submit(
                channel="email",
                recipient=order.email,
                body={"text": f"Order {order.pk} can be picked up in an hour."},
                send_at=pickup_at - HOUR,
                on_conflict="shift",
                idempotency_key=f"order-{order.pk}",
            )
            order.message_id = reminder.id
            order.save()
            send_mail("Your order", f"It has the number {order.pk}.", None, [order.email])
    except DispatcherError as error:  # the order is not stored either
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"order": order.pk, "reminder_at": reminder.send_at}, status=201)


from django.contrib import admin  # noqa: E402 - after the setup
from django.views.decorators.csrf import csrf_exempt  # noqa: E402

urlpatterns = [path("orders", csrf_exempt(take_order)), path("admin/", admin.site.urls)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
