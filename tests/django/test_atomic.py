"""A submit inside ``transaction.atomic()`` is stored if and when Django commits."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import TestCase
from fastapi.testclient import TestClient

from dispatcher import InvalidDraft, Message, QuotaExceeded, StoreUnavailable
from dispatcher.store.engines.mariadb import MariaDBEngine
from dispatcher.web import Caller, api
from tests.django.conftest import Project

pytestmark = pytest.mark.every_database
HOUR = timedelta(hours=1)


class Undone(Exception):
    """Ends an atomic block."""


def submit(project: Project, recipient: str = "ada@example.org", **asked: Any) -> Message:
    fields: dict[str, Any] = {"channel": "memory", "body": {"text": "é"}, "send_in": HOUR} | asked
    return project.dispatcher.submit(recipient=recipient, **fields)


def order(project: Project) -> Any:
    return project.shop.Order.objects.create(email="a", pickup_at=datetime(2100, 1, 1, tzinfo=UTC))


def orders(project: Project) -> int:
    return int(project.house.sql("SELECT COUNT(*) FROM shop_order")[0][0])


def published(project: Project) -> int:
    return sum(project.house.broker.llen(name) for name in project.house.settings.queues)


def test_both_are_stored_by_the_commit_and_not_before(project: Project) -> None:
    with transaction.atomic():
        order(project)
        message = submit(project, send_in=timedelta(seconds=1))
        assert project.house.rows() == []
        assert published(project) == 0
    assert orders(project) == 1
    assert project.dispatcher.get(message.id).body == {"text": "é"}
    assert published(project) == 1


def test_a_rollback_leaves_neither_row_nor_reservation(project: Project) -> None:
    gc.disable()
    try:
        with suppress(Undone), transaction.atomic():
            order(project)
            submit(project)
            assert project.house.all_members()
            raise Undone
        assert not project.house.all_members(), "noticed without the collector"
    finally:
        gc.enable()
    assert orders(project) == 0
    assert project.house.rows() == []


def test_a_savepoint_that_is_rolled_back_gives_back_its_own_reservation_alone(
    project: Project,
) -> None:
    with transaction.atomic():
        with suppress(Undone), transaction.atomic(), transaction.atomic():
            submit(project)
            raise Undone
        assert not project.house.all_members(), "also where nothing else was submitted"
        with suppress(Undone), transaction.atomic():
            with transaction.atomic():
                submit(project)
            assert project.house.all_members(), "a released one goes with the one around it"
            raise Undone
        assert not project.house.all_members()
        with suppress(DatabaseError), transaction.atomic():
            submit(project)
            with connection.cursor() as cursor:
                cursor.execute("SELECT nothing FROM nowhere")
        assert not project.house.all_members(), "also by an error of the database"
        kept = submit(project)
        with suppress(Undone), transaction.atomic():
            submit(project, "grace@example.org")
            raise Undone
        assert [*project.house.all_members()] == ["ada@example.org"]
        with transaction.atomic():
            inner = submit(project, "alan@example.org")
    assert {message.id for message in project.dispatcher.select()} == {kept.id, inner.id}


def test_a_refusal_leaves_the_transaction_as_it_was(project: Project) -> None:
    with transaction.atomic():
        order(project)
        raw = connection.connection
        first = submit(project)
        with pytest.raises(QuotaExceeded):
            submit(project, send_in=None, send_at=first.send_at)
        assert connection.connection is raw
        assert connection.in_atomic_block
        order(project)
        for name in "bc":
            submit(project, name, send_in=timedelta(seconds=1))
        assert len(connection.run_on_commit) == 1, "many share one connection and one look"
    assert orders(project) == 2
    if connection.vendor == "sqlite":  # SQLAlchemy has set nothing up on it
        assert project.shop.Order.objects.filter(email__regex=r"^a$").count() == 2
    enqueued = {message.recipient for message in project.dispatcher.select() if message.enqueued_at}
    assert enqueued == {"b", "c"}
    assert len(project.house.rows()) == 3
    assert connection.connection is raw, "it has ended nothing"


def test_threads_have_transactions_of_their_own(project: Project) -> None:
    stored: list[Message] = []

    def elsewhere() -> None:
        stored.append(submit(project, "grace@example.org"))
        connection.close()

    with transaction.atomic():
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        assert [message.id for message in project.dispatcher.select()] == [stored[0].id]
        submit(project)
        transaction.set_rollback(True)
    assert [message.id for message in project.dispatcher.select()] == [stored[0].id]
    assert [*project.house.all_members()] == ["grace@example.org"]


def test_what_cannot_be_joined_is_refused_by_name(project: Project) -> None:
    def refused(submit_there: Callable[[], object]) -> str:
        with pytest.raises(InvalidDraft) as caught:
            submit_there()
        return str(caught.value)

    with transaction.atomic():
        assert "on_commit" in refused(lambda: project.dispatcher.submit_many([]))
        with patch.object(connection, "Database", SimpleNamespace(__name__="ibm_db")):
            unknown = refused(lambda: submit(project))
        assert "ibm_db" in unknown
        assert "psycopg" in unknown
        transaction.set_rollback(True)
        assert refused(lambda: submit(project)).startswith("transaction.atomic: an error")
    assert project.dispatcher.submit_many([]) == []
    transaction.set_autocommit(False)
    try:
        assert "atomic()" in refused(lambda: submit(project))
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert not project.house.all_members()


def test_an_api_goes_on_after_its_project_was_closed(project: Project) -> None:
    """Settings that change, as in tests, close it; the next use builds everything anew."""
    client = TestClient(api(project.dispatcher, auth=lambda _: Caller(name="shop")))
    for _ in range(2):
        assert client.get("/v1/counts").status_code == 200
        project.dispatcher.close()


def test_a_connection_that_is_closed_inside_leaves_nothing(project: Project) -> None:
    try:
        with transaction.atomic():
            submit(project)
            connection.close()
    except DatabaseError:
        connection.close()
    assert project.house.rows() == []
    assert not project.house.all_members()


def test_a_commit_that_fails_may_have_been_done(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says whether it was: only the sweep may give the reservation back."""

    def fails() -> None:
        connection.errors_occurred = True
        raise OperationalError

    with suppress(OperationalError), transaction.atomic():
        submit(project)
        monkeypatch.setattr(connection, "commit", fails)
        monkeypatch.setattr(connection, "rollback", fails)
    monkeypatch.undo()
    assert [*project.house.all_members()] == ["ada@example.org"]


def test_callbacks_that_a_test_runs_early_settle_nothing(project: Project) -> None:
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True) as ran:
            message = submit(project)
        assert len(ran) == 1
        assert project.house.all_members()
    assert project.dispatcher.get(message.id) == message


def test_a_deadlock_that_undid_all_ends_the_block(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB undoes the whole transaction; the next statement would begin another one."""

    if connection.vendor != "mysql":
        pytest.skip("only MariaDB undoes all at a deadlock")

    monkeypatch.setattr(MariaDBEngine, "ended_by", lambda _self, error: error)
    with transaction.atomic():
        order(project)
        # A savepoint that is gone fails like a statement of a transaction that was undone.
        monkeypatch.setattr(MariaDBEngine, "undone_alone", _broken)
        with pytest.raises(StoreUnavailable):
            submit(project)
        assert connection.needs_rollback
    assert orders(project) == 0


def _broken(_self: object, connection: Any) -> Any:
    connection.exec_driver_sql("RELEASE SAVEPOINT none")
