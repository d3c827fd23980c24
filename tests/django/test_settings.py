"""The settings of a Django project, its commands and its checks."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import execute_from_command_line
from django.db import transaction
from django.test import override_settings

from dispatcher import InvalidDraft, InvalidSettings, Message, QuotaExceeded
from dispatcher.django import dispatcher
from dispatcher.django.project import load_settings
from dispatcher.testing import MemoryDispatcher
from tests.django.conftest import Project
from tests.django.test_atomic import submit
from tests.support.django_project import database_of, default_database

IN_MEMORY = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": "file:memorydb_default?mode=memory&cache=shared",
}
"""The database of a test run of Django's on SQLite."""


def loaded(**options: Any) -> Any:
    with override_settings(DISPATCHER=options):
        return load_settings()


def url_of(**entry: Any) -> str:
    with default_database({"ENGINE": "django.db.backends.sqlite3"} | entry):
        return str(loaded().database_url)


def test_a_setting_of_the_project_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISPATCHER_NAMESPACE", "of-the-environment")
    monkeypatch.setenv("DISPATCHER_QUEUE", "of-the-environment")
    present = loaded(namespace="of-the-project")
    assert (present.namespace, present.queue) == ("of-the-project", "of-the-environment")
    url = "sqlite:////elsewhere/store.db"
    assert loaded(database_url=url, database=None).database_url == url
    with pytest.raises(InvalidSettings) as refused:
        loaded(quota=["1/minute"])
    assert refused.value.field == "quota"
    with pytest.raises(InvalidSettings) as refused:
        loaded(database="elsewhere")
    assert refused.value.accepted == "one of default, or None"


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": Path("/a/b.db"), "OPTIONS": {"transaction_mode": "IMMEDIATE"}},
         "sqlite:////a/b.db"),
        ({"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "ada",
          "PASSWORD": "p@ss/w", "HOST": "db.example", "PORT": "5433",
          "OPTIONS": {"sslmode": "require", "pool": True}},
         "postgresql://ada:p%40ss%2Fw@db.example:5433/shop?sslmode=require"),
        ({"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "/run/pg"},
         "postgresql:///shop?host=%2Frun%2Fpg"),
        ({"ENGINE": "django.db.backends.mysql", "NAME": "shop", "HOST": "db", "PORT": 3307,
          "OPTIONS": {"charset": "utf8mb4"}},
         "mysql://db:3307/shop"),
    ],
)  # fmt: skip
def test_the_database_is_djangos(database: dict[str, Any], url: str) -> None:
    assert url_of(**database) == url


@pytest.mark.parametrize(
    ("database", "field"),
    [
        ({"NAME": ":memory:"}, "DATABASES.default.NAME"),
        ({"NAME": "file:x?mode=memory&cache=shared"}, "DATABASES.default.NAME"),
        ({"ENGINE": "django.db.backends.postgresql", "NAME": "a", "OPTIONS": {"assume_role": "b"}},
         "DATABASES.default.OPTIONS.assume_role"),
        ({"ENGINE": "django.db.backends.mysql", "NAME": "a", "OPTIONS": {"ssl": {"ca": "b"}}},
         "DATABASES.default.OPTIONS.ssl"),
    ],
)  # fmt: skip
def test_database_options_without_a_url_form_are_refused_by_field(
    database: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        url_of(**database)
    assert refused.value.field == field
    assert "database_url" in refused.value.accepted


@pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)
def test_with_a_database_of_its_own_it_joins_nothing(project: Project, sqlite_url: str) -> None:
    options = settings.DISPATCHER | {"database": None, "database_url": sqlite_url}
    with override_settings(DISPATCHER=options):
        with transaction.atomic():
            message = submit(project)
            assert project.dispatcher.get(message.id) == message
            transaction.set_rollback(True)
        assert project.dispatcher.get(message.id) == message
    options = settings.DISPATCHER | {"database_url": sqlite_url}
    with override_settings(DISPATCHER=options), transaction.atomic():
        with pytest.raises(InvalidDraft) as refused:
            submit(project, "grace@example.org")
        assert "another database" in str(refused.value)


@pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("has_submitted", [False, True])
def test_a_test_run_that_swaps_the_database_writes_nothing_into_the_real_one(
    project: Project, sqlite_url: str, has_submitted: bool
) -> None:
    before = [submit(project, "ada@example.org").id] if has_submitted else []
    assert project.dispatcher.settings.database_url != sqlite_url
    with default_database(database_of(sqlite_url)):
        message = submit(project, "grace@example.org")
        with transaction.atomic():
            joined = submit(project, "alan@example.org")
        assert project.dispatcher.settings.database_url == sqlite_url
        ids = {message.id for message in project.dispatcher.select()}
    assert ids == {message.id, joined.id}
    assert [message.id for message in project.dispatcher.select()] == before
    assert len(project.house.rows()) == len(before)


@pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)
def test_each_process_builds_its_own(project: Project) -> None:
    before = project.dispatcher._app
    child = os.fork()
    if child == 0:
        os._exit(0 if vars(project.dispatcher).get("_built") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert project.dispatcher._app is before
    project.dispatcher.close()
    assert project.dispatcher._app is not before


@pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)
def test_a_call_while_the_dispatcher_is_closed_builds_anew(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = submit(project)
    old, booked = project.dispatcher._app, list[Message]()
    close = old.close

    def close_slowly() -> None:
        booked.extend(project.dispatcher.select())
        close()

    monkeypatch.setattr(old, "close", close_slowly)
    project.dispatcher.close()
    assert [message.id for message in booked] == [message.id]


@pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)
def test_manage_py_runs_the_command_line(
    project: Project, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = submit(project)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "dispatcher", "show", str(message.id), "--json"])
    assert not ended.value.code
    assert str(message.id) in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "dispatcher", "cancel", str(project.house.parts)])
    assert ended.value.code == 2


def test_a_plain_check_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = Mock(side_effect=AssertionError("a check has connected"))
    monkeypatch.setattr(socket.socket, "connect", connected)
    with override_settings(DISPATCHER={"redis_url": "redis://127.0.0.1:1/0"}):
        assert not any("dispatcher" in str(message.id) for message in run_checks())
    with override_settings(DISPATCHER={"horizon": 0}):
        [message] = run_checks(tags=["dispatcher"])
    assert (message.id, message.is_serious()) == ("dispatcher.settings", True)
    templates = {"good": {"text": "Hello {{ name }}"}, "wrong": {"text": "Hello {{ name"}}
    channels = {"sms": {"transport": "memory", "templates": templates}}
    with override_settings(DISPATCHER={"channels": channels}):
        [message] = run_checks(tags=["dispatcher"])
    assert (message.id, message.is_serious()) == ("dispatcher.templates", True)
    assert message.msg.startswith("channels.sms.templates.wrong.text: ")


def test_a_check_makes_the_transport_of_each_channel() -> None:
    """A worker with wrong options would fail every delivery."""
    smtp = {"url": "smtp://mail.example", "from": "shop@example.org", "plaintext": True}
    channels: dict[str, Any] = {
        "good": {"transport": "smtp", "options": smtp},
        "wrong": {"transport": "smtp", "options": {"host": "mail.example", "from": "a@b.example"}},
        "absent": {"transport": "not_installed_here:send"},
        "broken": {"transport": f"{__name__}:Broken"},
    }
    with override_settings(DISPATCHER={"channels": channels}):
        messages = run_checks(tags=["dispatcher"])
    assert {message.id for message in messages} == {"dispatcher.channels"}
    [wrong], [absent], [broken] = (
        [message for message in messages if name in message.msg]
        for name in ("wrong", "absent", "broken")
    )
    assert wrong.msg.startswith("channels.wrong.options.host: ")
    assert "one of url, " in wrong.msg
    assert [message.is_serious() for message in (wrong, absent, broken)] == [True, False, True]
    assert "RuntimeError" in broken.msg
    assert "secret" not in broken.msg


class Broken:
    """A transport that cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("secret")

    def send(self, message: Any) -> None:
        """Send nothing."""


def test_a_test_run_in_memory_has_the_settings_for_a_dispatcher_in_memory() -> None:
    options = {"quotas": "1/day", "channels": {"email": {"transport": "memory"}}}
    with (
        default_database(IN_MEMORY),
        override_settings(DISPATCHER=options),
        MemoryDispatcher(dispatcher.settings) as made,
    ):
        for _ in range(2):
            with suppress(QuotaExceeded):
                made.submit("email", recipient="ada@example.org", body={}, send_in=timedelta(1))
        made.assert_refused(quota="1/day")
        assert run_checks(tags=["dispatcher"]) == []
        with pytest.raises(InvalidSettings) as refused:
            dispatcher.submit("email", recipient="ada@example.org", body={}, send_in=timedelta(1))
        assert refused.value.field == "DATABASES.default.NAME"
        assert "database_url" in refused.value.accepted


@pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)
def test_the_checks_of_a_deployment_are_the_doctors(project: Project) -> None:
    checked = run_checks(tags=["dispatcher"], include_deployment_checks=True)
    messages = {message.id: message for message in checked}
    examined = project.dispatcher._app.doctor().examine().findings
    assert set(messages) == {f"dispatcher.{check.check}" for check in examined if check.remedy}
    assert messages["dispatcher.work.processes"].hint
