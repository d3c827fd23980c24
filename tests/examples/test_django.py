"""The Django example, through Django's own client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client, override_settings

from dispatcher.celery.configuration import settings_of
from dispatcher.django import dispatcher
from dispatcher.times.clock import SystemClock
from tests.examples.conftest import TOMORROW
from tests.support.django_project import database_of, default_database, shop
from tests.support.house import House, house_on
from tests.support.servers import RedisServer

HOUR = timedelta(hours=1)
CHANNELS = {"email": {"transport": "memory"}}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name a database that ``migrate`` made."""
    shop()
    path = tmp_path_factory.mktemp("django") / "shop.db"
    with default_database(database_of(f"sqlite:///{path}")):
        call_command("migrate", run_syncdb=True, verbosity=0)
    return path


@pytest.fixture
def house(database: Path, redis_server: RedisServer, tmp_path: Path) -> Iterator[House]:
    """Give a house on the example's servers, with Redis open and nothing stored."""
    path = tmp_path / "shop.db"
    path.write_bytes(database.read_bytes())
    url = f"sqlite:///{path}"
    with house_on(redis_server, url, clock=SystemClock(), channels=CHANNELS) as house:
        given: dict[str, Any] = {
            "redis_url": redis_server.url,
            "channels": CHANNELS,
            "namespace": "house",
        }
        given |= {"shards": 4, "data_dir": tmp_path}
        with default_database(database_of(url)), override_settings(DISPATCHER=given):
            yield house
            dispatcher.close()


def order(status: int = 201, pickup_at: str = TOMORROW.isoformat()) -> dict[str, Any]:
    asked = {"email": "ada@example.org", "pickup_at": pickup_at}
    answer = Client().post("/orders", asked, content_type="application/json")
    assert answer.status_code == status
    return dict(answer.json())


def test_an_order_its_reminder_and_its_confirmation_are_stored_together(house: House) -> None:
    with override_settings(EMAIL_BACKEND="dispatcher.django.EmailBackend"):
        stored = shop().Order.objects.get(pk=order()["order"])
    confirmation, reminder = sorted(house.dispatcher.select(), key=lambda each: each.send_at)
    assert stored.message_id == reminder.id
    assert reminder.send_at == TOMORROW - HOUR
    assert confirmation.body["subject"] == "Your order"


def test_an_order_that_is_rolled_back_reminds_nobody(house: House) -> None:
    with transaction.atomic():
        order()
        transaction.set_rollback(True)
    assert shop().Order.objects.count() == 0
    assert house.rows() == []
    assert not house.all_members()


def test_a_reminder_that_is_refused_undoes_the_order(house: House) -> None:
    assert "past" in order(409, "2020-01-01T08:00+01:00")["error"]
    house.redis.flushall()
    assert "reservations unavailable" in order(409)["error"]
    assert shop().Order.objects.count() == 0
    assert house.rows() == []


def test_the_celery_app_of_the_project_works_with_its_settings() -> None:
    example = shop()
    settings = settings_of(example.celery)
    assert Path(settings.database_url.removeprefix("sqlite:///")).name == "shop.db"
    assert settings.zone == "Europe/Berlin"
    assert "dispatcher.celery.tasks" in example.celery.conf.imports
