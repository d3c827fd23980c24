"""The Django example, through Django's own client; Django is set up once in a process."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import InvalidDraft
from dispatcher.celery_app import settings_of
from tests.examples.conftest import TOMORROW
from tests.support.house import House, house_on
from tests.support.servers import RedisServer

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def django(
    redis_session: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, House]]:
    """Give the example on a database of its own that ``migrate`` made, and a house beside it."""
    path = tmp_path_factory.mktemp("django") / "shop.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_DATABASE", str(path))
        url = f"sqlite:///{path}"
        given: dict[str, Any] = {
            "redis_url": redis_session.url,
            "channels": {"email": {"transport": "memory"}},
        }
        for name, value in given.items():
            text = value if isinstance(value, str) else json.dumps(value)
            patch.setenv(f"DISPATCHER_{name.upper()}", text)
        patch.setenv("DISPATCHER_NAMESPACE", "house")
        patch.setenv("DISPATCHER_SHARDS", "4")
        example = importlib.import_module("examples.django_shop")
        from django.core.management import call_command  # noqa: PLC0415 - needs the example's setup

        call_command("migrate", run_syncdb=True, verbosity=0)
        with house_on(redis_session, url, opened=False, **given) as house:
            yield example, house
        example.shop.dispatcher.close()


@pytest.fixture
def shop(django: tuple[Any, House], redis_server: RedisServer) -> tuple[Any, House]:
    """Give the example and its house, with Redis open and nothing stored."""
    redis_server.client().close()  # it is up, and emptied
    example, house = django
    example.Order.objects.all().delete()
    house.sql("DELETE FROM dispatcher_messages")
    house.sql("DELETE FROM dispatcher_idempotency_keys")
    house.open()
    return example, house


def order(pickup_at: str = TOMORROW.isoformat()) -> dict[str, Any]:
    from django.test import Client  # noqa: PLC0415 - needs the example's setup

    asked = {"email": "ada@example.org", "pickup_at": pickup_at}
    answer = Client().post("/orders", asked, content_type="application/json")
    assert answer.status_code == 201
    return dict(answer.json())


def test_an_order_is_reminded_of_from_the_same_database(shop: tuple[Any, House]) -> None:
    example, house = shop
    stored = example.Order.objects.get(pk=order()["order"])
    [message] = [*house.dispatcher.select()]
    assert stored.message_id == message.id
    assert message.send_at == TOMORROW - HOUR
    assert example.remind_the_rest() == 0


def test_an_order_that_is_rolled_back_reminds_nobody(shop: tuple[Any, House]) -> None:
    from django.db import transaction  # noqa: PLC0415 - needs the example's setup

    example, house = shop
    with transaction.atomic():
        order()
        transaction.set_rollback(True)
    assert example.Order.objects.count() == 0
    assert house.rows() == []
    assert not house.all_members()


def test_a_connection_of_djangos_is_no_session(shop: tuple[Any, House]) -> None:
    from django.db import connection  # noqa: PLC0415 - needs the example's setup

    example, house = shop
    with pytest.raises(InvalidDraft) as refused:
        example.shop.dispatcher.submit(
            channel="email", recipient="ada", body={}, send_in=HOUR, session=connection
        )
    assert refused.value.field == "session"
    assert house.rows() == []


def test_what_redis_kept_from_being_submitted_is_made_good_once(shop: tuple[Any, House]) -> None:
    example, house = shop
    house.redis.flushall()
    assert "reservations unavailable" in order()["no_reminder_yet"]
    assert house.rows() == []
    house.open()
    assert [example.remind_the_rest(), example.remind_the_rest()] == [1, 0]
    assert len([*house.dispatcher.select()]) == 1


def test_a_process_that_dies_after_the_submit_reminds_nobody_twice(shop: tuple[Any, House]) -> None:
    example, house = shop
    order()
    example.Order.objects.update(message_id=None)
    assert example.remind_the_rest() == 1
    assert len([*house.dispatcher.select()]) == 1


def test_the_celery_app_of_the_project_works_with_its_settings(shop: tuple[Any, House]) -> None:
    example, house = shop
    settings = settings_of(example.celery)
    assert Path(settings.database_url.removeprefix("sqlite:///")).name == "shop.db"
    assert "dispatcher.worker.tasks" in example.celery.conf.imports
    assert settings.database_url == house.settings.database_url


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/a/b.db")}, "sqlite:////a/b.db"),
        (
            {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "ada",
             "PASSWORD": "p@ss/w", "HOST": "db.example", "PORT": "5433"},
            "postgresql://ada:p%40ss%2Fw@db.example:5433/shop",
        ),
        (
            {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "USER": "", "HOST": "db"},
            "mysql://db/shop",
        ),
    ],
)  # fmt: skip
def test_djangos_databases_are_said_as_urls(
    shop: tuple[Any, House], database: dict[str, Any], url: str
) -> None:
    example, _ = shop
    assert example.database_url(database) == url
