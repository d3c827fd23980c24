"""``manage.py migrate`` makes the dispatcher's tables, and its models are these tables."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings

from dispatcher import Message
from dispatcher.django.models import Attempt, Suppression
from dispatcher.django.models import Message as Model
from dispatcher.store.database import Database
from dispatcher.store.migrate import migrate, schema_standing
from dispatcher.store.schema import tables_named
from tests.django.conftest import Project
from tests.django.test_atomic import submit
from tests.support.django_project import database_of, default_database

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.every_database


def test_the_models_have_no_changes_without_a_migration() -> None:
    ours, djangos = (
        {path.stem for path in (ROOT / folder).glob("[0-9]*.py")}
        for folder in ("migrations/versions", "dispatcher/django/migrations")
    )
    assert ours == djangos
    call_command("makemigrations", "dispatcher", check=True, dry_run=True, verbosity=0)


def test_migrate_makes_what_our_own_migrations_make(project: Project) -> None:
    standing = schema_standing(project.house.parts.database)
    assert (standing.revision, standing.missing) == (standing.head, ())


def test_it_brings_a_database_of_an_older_version_to_the_newest(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    migrate(database)  # by `dispatcher migrate`, before Django was asked
    with default_database(database_of(empty_database_url)), override_settings(DISPATCHER={}):
        call_command("migrate", "dispatcher", verbosity=0)
        told = io.StringIO()
        call_command("showmigrations", "dispatcher", stdout=told)
    assert "[ ]" not in told.getvalue()
    assert schema_standing(database).missing == ()
    database.close()


@pytest.mark.parametrize("django_url", ["postgresql"], indirect=True)
def test_a_schema_for_all_tenants(project: Project) -> None:
    """As django-tenants has it: each request puts its tenant's schema first in ``search_path``.

    A table of the same name there is another one.
    """
    project.house.sql("CREATE SCHEMA acme")
    project.house.sql("CREATE TABLE acme.dispatcher_messages (LIKE public.dispatcher_messages)")
    try:
        options = settings.DISPATCHER | {"table_schema": "public"}
        with override_settings(DISPATCHER=options), connection.cursor() as cursor:
            assert project.dispatcher.settings.table_schema == "public"
            with transaction.atomic():
                cursor.execute("SET LOCAL search_path = acme, public")
                message = submit(project)
            assert project.dispatcher.get(message.id).recipient == message.recipient
        assert project.house.sql("SELECT COUNT(*) FROM acme.dispatcher_messages") == [(0,)]
    finally:
        project.house.sql("DROP SCHEMA acme CASCADE")


def test_the_settings_name_the_tables_and_their_schema(empty_database_url: str) -> None:
    options: dict[str, Any] = {"table_prefix": "mail_"}
    if empty_database_url.startswith("postgresql"):  # only it has schemas
        options["table_schema"] = "messages"
    with default_database(database_of(empty_database_url)), override_settings(DISPATCHER=options):
        call_command("migrate", "dispatcher", verbosity=0)
        assert not run_checks(tags=["dispatcher"])
    database = Database(empty_database_url, **options)
    assert schema_standing(database).missing == ()
    database.close()


def test_another_database_and_one_in_memory_are_left_alone() -> None:
    in_memory = database_of("sqlite:///x") | {"NAME": ":memory:"}
    with default_database(in_memory), override_settings(DISPATCHER={}):
        call_command("migrate", "dispatcher", verbosity=0)
        assert connection.introspection.table_names() == ["django_migrations"]


def test_the_models_have_the_columns_of_the_tables() -> None:
    def columns(model: Any) -> set[str]:
        return {field.column for field in model._meta.fields if field.column}

    tables = tables_named("dispatcher_", None)
    assert columns(Model) == set(Message.__dataclass_fields__)
    assert columns(Attempt) == set(tables.attempts.c.keys())
    assert columns(Suppression) == set(tables.suppressions.c.keys())
    for model, table in ((Model, "messages"), (Attempt, "attempts"), (Suppression, "suppressions")):
        assert model._meta.db_table == f"dispatcher_{table}"
        assert not model._meta.managed


def test_the_models_read_what_the_dispatcher_reads(project: Project) -> None:
    message = submit(
        project,
        body={"text": "é", "list": [1, {"a": None}]},
        idempotency_key="k",
        expire_after=timedelta(hours=2),
        zone="Europe/Berlin",
    )
    [row] = Model.objects.all()
    for name in Message.__dataclass_fields__:
        expected = getattr(message, name)
        assert getattr(row, name) == (None if expected == {} else expected), name
    assert Model.objects.get(id=message.id) == row
    assert Model.objects.filter(send_at=message.send_at, status="scheduled").count() == 1
    assert Model.objects.filter(send_at__gt=message.send_at).count() == 0
    assert Model.objects.filter(send_at__gte=message.send_at).count() == 1
    project.house.sql("UPDATE dispatcher_messages SET next_attempt_at = created_at")
    project.house.deliver(message)
    [attempt] = Attempt.objects.filter(message_id=message.id)
    [made] = project.dispatcher.attempts(message.id)
    assert (attempt.outcome, attempt.started_at) == (made.outcome, made.started_at)
    void = submit(project, "grace@example.org")
    project.house.sql("UPDATE dispatcher_messages SET status = 'void' WHERE status = 'scheduled'")
    assert not Model.objects.filter(id=void.id).exists(), "a void row is no message"
    project.dispatcher.suppress("ada@example.org")
    [opted_out] = Suppression.objects.all()
    assert (opted_out.recipient, opted_out.channel) == ("ada@example.org", "")
