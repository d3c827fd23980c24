"""The code on docs/django.md does what the page says."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from dispatcher.celery.configuration import settings_of
from dispatcher.django import configuration
from dispatcher.django.admin import ACTIONS
from dispatcher.django.models import Message, Suppression
from tests.django.conftest import Project

PAGE = (Path(__file__).parents[2] / "docs/django.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOMORROW = datetime.now(UTC) + timedelta(days=1)

pytestmark = pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)


def ran(beginning: str, **names: Any) -> dict[str, Any]:
    [code] = [each for each in BLOCKS if each.startswith(beginning)]
    exec(compile(code, "django.md", "exec", dont_inherit=True), names)  # noqa: S102 - our own page
    return names


def test_the_settings_of_the_page_load(project: Project) -> None:
    names = ran("# settings.py", INSTALLED_APPS=[])
    assert names["INSTALLED_APPS"] == ["dispatcher.django"]
    with override_settings(DISPATCHER=names["DISPATCHER"]):
        found = configuration.load()
        assert found.channels["email"].transport == "smtp"
        assert found.database_url == project.house.settings.database_url


def test_the_celery_app_of_the_page_delivers(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "")  # the page names a project of its own
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with override_settings(CELERY_BROKER_URL=project.dispatcher.settings.broker_url):
        names = ran("# shop/celery.py")
        assert settings_of(names["app"]) == project.dispatcher.settings
        assert "dispatcher.celery.tasks" in names["app"].conf.imports


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


def test_the_page_names_every_permission(project: Project) -> None:
    own = {name for name, _ in Message._meta.permissions}
    for model in (Message, Suppression):
        own |= {f"{each}_{model._meta.model_name}" for each in model._meta.default_permissions}
    section = PAGE.split("## Admin")[1]
    assert {each for each in own if each not in section} == set()
    assert {each.permission for each in ACTIONS.values()} <= own
