"""The Django example, through Django's own client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings

from dispatcher.celery.configuration import settings_of
from tests.django.conftest import Project
from tests.support.django_project import shop

TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
on_sqlite = pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)


def order(status: int = 201, pickup_at: str = TOMORROW.isoformat()) -> dict[str, Any]:
    asked = {"email": "ada@example.org", "pickup_at": pickup_at}
    answer = Client().post("/orders", asked, content_type="application/json")
    assert answer.status_code == status
    return dict(answer.json())


@on_sqlite
def test_an_order_its_reminder_and_its_confirmation_are_stored_together(project: Project) -> None:
    with override_settings(EMAIL_BACKEND="dispatcher.django.EmailBackend"):
        stored = project.shop.Order.objects.get(pk=order()["order"])
    confirmation, reminder = sorted(project.dispatcher.select(), key=lambda each: each.send_at)
    assert stored.message_id == reminder.id
    assert reminder.send_at == TOMORROW - timedelta(hours=1)
    assert confirmation.body["subject"] == "Your order"


@on_sqlite
def test_a_reminder_that_is_refused_undoes_the_order(project: Project) -> None:
    assert "past" in order(409, "2020-01-01T08:00+01:00")["error"]
    project.house.redis.flushall()
    assert "reservations unavailable" in order(409)["error"]
    assert project.shop.Order.objects.count() == 0
    assert project.house.rows() == []


def test_the_celery_app_of_the_project_works_with_its_settings() -> None:
    example = shop()
    settings = settings_of(example.celery)
    assert Path(settings.database_url.removeprefix("sqlite:///")).name == "shop.db"
    assert settings.zone == "Europe/Berlin"
    assert "dispatcher.celery.tasks" in example.celery.conf.imports
