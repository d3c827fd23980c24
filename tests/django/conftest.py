"""The example shop on each database that ``migrate`` has made, and a house beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from dispatcher import Dispatcher
from dispatcher.django import dispatcher
from tests.support.django_project import database_of, default_database, shop
from tests.support.house import House, house_on
from tests.support.servers import RedisServer
from tests.support.tables import NAMES

shop()  # before the tests beside this file import models
CHANNELS = {"email": {"transport": "memory"}, "memory": {"transport": "memory"}}
_KEPT = {
    "dispatcher_alembic_version",
    "django_migrations",
    "django_content_type",
    "auth_permission",
}


@dataclass
class Project:
    """A Django project, its dispatcher, and a house on the same servers."""

    shop: Any
    dispatcher: Dispatcher
    house: House


@pytest.fixture(scope="session", params=["sqlite", "postgresql", "mariadb"])
def django_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the URL of a database that ``manage.py migrate`` has made, on each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('django') / 'shop.db'}"
    else:
        server = request.getfixturevalue("postgres" if request.param == "postgresql" else "mariadb")
        url = server.url(server.create_database())
    with default_database(database_of(url)):
        call_command("migrate", run_syncdb=True, verbosity=0)
    return url


@pytest.fixture
def project(django_url: str, redis_server: RedisServer, tmp_path: Path) -> Iterator[Project]:
    """Give the project with Redis open and nothing stored."""
    with house_on(redis_server, django_url, channels=CHANNELS, opened=False) as house:
        for table in (*NAMES - _KEPT, "shop_order"):
            house.sql(f"DELETE FROM {table}")  # noqa: S608 - names of ours
        house.open()
        options = {
            "redis_url": redis_server.url,
            "broker_url": house.settings.broker_url,
            "namespace": "house",
            "shards": 4,
            "channels": CHANNELS,
            "data_dir": tmp_path,
        }
        with default_database(database_of(django_url)), override_settings(DISPATCHER=options):
            yield Project(shop(), dispatcher, house)
            dispatcher.close()
