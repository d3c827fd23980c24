"""Errors as problems: one type for each class, each with its data."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from dispatcher import errors, problems
from dispatcher.message import new_id
from dispatcher.problems import answer_to
from tests.support.house import House
from tests.web.test_messages import new


def classes() -> set[type[errors.DispatcherError]]:
    every = vars(errors).values()
    return {
        each for each in every if inspect.isclass(each) and issubclass(each, errors.DispatcherError)
    }


def test_every_error_has_a_status_and_a_type_of_its_own() -> None:
    assert set(problems.STATUSES) == classes()
    assert len({problems.kind_of(each) for each in classes()}) == len(classes())


@pytest.mark.parametrize(
    ("error", "status", "data", "headers"),
    [
        (
            errors.ReservationsUnavailable("away", retry_after=timedelta(seconds=2.5)),
            503,
            {"reason": "away", "retry_after_seconds": 2.5},
            {"Retry-After": "3"},
        ),
        (errors.ReservationsUnavailable("away"), 503, {"reason": "away"}, {"Retry-After": "1"}),
        (errors.DuplicateUnderWay(), 409, {}, {"Retry-After": "1"}),
        (errors.StoreUnavailable("no", refused=True), 422, {"refused": True}, {}),
        (errors.IdempotencyConflict("k", new_id()), 422, {"key": "k"}, {}),
        (errors.OutcomeUnknown("broke", new_id()), 500, {"reason": None}, {}),
    ],
)
def test_a_problem_has_the_data_of_its_error(
    error: errors.DispatcherError, status: int, data: dict[str, object], headers: dict[str, str]
) -> None:
    problem = problems.problem_of(error)
    assert problem["status"] == status
    assert problems.headers_of(error) == headers
    for name, value in data.items():
        assert value is None or problem[name] == value
    if isinstance(error, errors.OutcomeUnknown):
        assert problem["message_id"] == str(error.message_id)
        assert "Idempotency-Key" in problem["detail"]


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (
            errors.IdempotencyConflict("secret", new_id()),
            422,
            "The idempotency key was used before, for other content. Nothing was changed.",
        ),
        (
            errors.StoreUnavailable("secret:5432 cannot be reached", remedy="start secret"),
            503,
            "The database did not execute a statement.",
        ),
        (
            errors.StoreUnavailable("secret", refused=True),
            422,
            "The database did not execute a statement.",
        ),
        (
            errors.InvalidSettings("secret", "is secret", "secrets"),
            500,
            "The configuration contradicts itself or has a value that cannot be used.",
        ),
        (errors.PermanentFailure("secret"), 500, "The provider will never accept this message."),
    ],
)
def test_callers_of_an_application_are_told_no_servers_settings_or_messages_of_others(
    error: errors.DispatcherError, status: int, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P10: the answers of dispatcher.fastapi and dispatcher.flask may reach the public."""
    told = json.loads(answer_to(error)[0])
    assert told.keys() == {"type", "title", "status", "detail"}
    assert (told["status"], told["detail"]) == (status, sentence)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == (
        [f"answered with {status}: {error}"] if status >= 500 else []
    )


def test_a_caller_of_an_application_can_ask_for_a_message_of_unknown_outcome() -> None:
    error = errors.OutcomeUnknown("secret", new_id())
    body, status, _ = answer_to(error)
    assert (status, json.loads(body)["message_id"]) == (500, str(error.message_id))
    assert "secret" not in body


def test_servers_that_are_away_are_said(house: House, shop: TestClient) -> None:
    house.redis.flushall()
    refused = shop.post("/v1/messages", json=new())
    assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (
        503,
        "reservations-unavailable",
    )
    assert "Retry-After" in refused.headers


def test_a_fault_of_ours_is_a_problem_without_its_text(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("with a secret")

    monkeypatch.setattr(house.dispatcher, "list", broken)
    app = TestClient(shop.app, raise_server_exceptions=False, headers=dict(shop.headers))
    answer = app.get("/v1/messages")
    assert answer.status_code == 500
    assert answer.json()["type"].endswith("internal-error")
    assert "secret" not in answer.text
