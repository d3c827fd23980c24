"""The example shop as the Django project of the tests, on any database."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pymysql
from django.db import connections
from django.db.utils import ConnectionHandler
from sqlalchemy import make_url

_ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


@cache
def shop() -> Any:
    """Set Django up, once in a process, and return the module of the example."""
    if find_spec("MySQLdb") is None:
        pymysql.install_as_MySQLdb()
    folder = tempfile.mkdtemp(prefix="dispatcher-django-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["SHOP_DATABASE"] = str(Path(folder) / "shop.db")
    os.environ.setdefault("DISPATCHER_REDIS_URL", "redis://127.0.0.1:1/0")  # until a test names one
    try:
        return importlib.import_module("examples.django_shop")
    finally:
        if os.environ["DISPATCHER_REDIS_URL"].endswith(":1/0"):
            del os.environ["DISPATCHER_REDIS_URL"]


def database_of(url: str, **options: Any) -> dict[str, Any]:
    parts = make_url(url)
    return {
        "ENGINE": f"django.db.backends.{_ENGINES[parts.get_backend_name()]}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.host or str(parts.query.get("host", "")),
        "PORT": parts.port or "",
        "OPTIONS": options,
    }


@contextmanager
def default_database(given: dict[str, Any]) -> Iterator[None]:
    settings: dict[str, Any] = connections.settings
    before = settings["default"]
    connections["default"].close()
    del connections["default"]
    settings["default"] = ConnectionHandler({"default": given}).settings["default"]
    try:
        yield
    finally:
        connections["default"].close()
        del connections["default"]
        settings["default"] = before
