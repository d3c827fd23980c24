"""The code on docs/django.md does what the page says, and the example, through Django's client."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client, override_settings

from dispatcher.celery.configuration import settings_of
from dispatcher.django.admin import ACTIONS
from dispatcher.django.models import Message, Suppression
from dispatcher.django.project import load_settings
from tests.django.conftest import Project
from tests.support.django_project import shop

PAGE = (Path(__file__).parents[2] / "docs/django.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
on_sqlite = pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)


def ran(beginning: str, **names: Any) -> dict[str, Any]:
    [code] = [block for block in BLOCKS if block.startswith(beginning)]
    exec(compile(code, "django.md", "exec", dont_inherit=True), names)  # noqa: S102 - our own page
    return names


@on_sqlite
def test_the_settings_of_the_page_load(project: Project) -> None:
    names = ran("# settings.py", INSTALLED_APPS=[])
    assert names["INSTALLED_APPS"] == ["dispatcher.django"]
    with override_settings(DISPATCHER=names["DISPATCHER"]):
        loaded = load_settings()
        assert loaded.channels["email"].transport == "smtp"
        assert loaded.database_url == project.house.settings.database_url


@on_sqlite
def test_the_celery_app_of_the_page_delivers(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "")  # the page names a project of its own
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with override_settings(CELERY_BROKER_URL=project.dispatcher.settings.broker_url):
        names = ran("# shop/celery.py")
        assert settings_of(names["app"]) == project.dispatcher.settings
        assert "dispatcher.celery.tasks" in names["app"].conf.imports


@on_sqlite
def test_an_order_and_its_message_commit_together(project: Project) -> None:
    names = ran("from datetime import", Order=project.shop.Order)
    names["take_order"]("ada@example.org", TOMORROW)
    with suppress(ZeroDivisionError), transaction.atomic():
        names["take_order"]("grace@example.org", TOMORROW)
        raise ZeroDivisionError
    [order] = project.shop.Order.objects.all()
    [message] = [*project.dispatcher.select()]
    assert message.idempotency_key == f"order-{order.pk}"
    assert [*project.house.all_members()] == ["ada@example.org"]


@on_sqlite
def test_the_page_names_every_permission(project: Project) -> None:
    own = {name for name, _ in Message._meta.permissions}
    for model in (Message, Suppression):
        own |= {f"{action}_{model._meta.model_name}" for action in model._meta.default_permissions}
    section = PAGE.split("## Admin")[1]
    assert {name for name in own if name not in section} == set()
    assert {action.permission for action in ACTIONS.values()} <= own


def order(status: int = 201, pickup_at: str = TOMORROW.isoformat()) -> dict[str, Any]:
    asked = {"email": "ada@example.org", "pickup_at": pickup_at}
    answer = Client().post("/orders", asked, content_type="application/json")
    assert answer.status_code == status
    return dict(answer.json())


@on_sqlite
def test_an_order_its_reminder_and_its_confirmation_are_stored_together(project: Project) -> None:
    with override_settings(EMAIL_BACKEND="dispatcher.django.EmailBackend"):
        stored = project.shop.Order.objects.get(pk=order()["order"])
    confirmation, reminder = sorted(project.dispatcher.select(), key=attrgetter("send_at"))
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
