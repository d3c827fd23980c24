"""Errors as problems: one type for each class, each with its data."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from dispatcher import errors, problems
from dispatcher.message import new_id
from dispatcher.problems import answer_to
from tests.support.doubles import raising
from tests.support.house import House
from tests.web.conftest import kind
from tests.web.test_messages import new

AT = datetime(2100, 1, 1, 12, tzinfo=UTC)
SLOT = AT + timedelta(minutes=1)
WAIT = timedelta(seconds=2.5)


def of_every_class() -> dict[errors.DispatcherError, int]:
    """Return an error of each class, with all of its data, and its status."""
    refused = errors.SlotRefused("does not fit", AT, SLOT, None)
    booked = {"send_at": AT, "next_slot": SLOT}
    full = {"quota": "1/minute", "scope": "ada", "conflicting": [new_id(), new_id()]}
    limited = {"limit": "5/minute", "others": ("9/hour",), "retry_after": WAIT, "reset_at": AT}
    value = ("field", "is wrong", "another")
    return {
        errors.DispatcherError("failed"): 500,
        errors.InvalidValue(*value): 422,
        errors.InvalidDraft(*value): 422,
        errors.InvalidSendTime(*value): 422,
        errors.Suppressed("sms"): 409,
        errors.UnknownChannel("fax", ["sms", "mail"]): 422,
        errors.InvalidSettings(*value): 500,
        errors.MissingExtra("web", *value): 500,
        refused: 409,
        errors.QuotaExceeded(**full, **booked): 409,  # type: ignore[arg-type]  # passed on
        errors.QuietHours(quiet_hours="21:00-08:00", zone="Europe/Berlin", **booked): 409,
        errors.BatchRefused(3): 409,
        errors.IdempotencyConflict("k", new_id()): 422,
        errors.MessageNotFound(new_id()): 404,
        errors.MessageChanged(new_id()): 412,
        errors.TooLate(new_id(), "sent"): 409,
        errors.LimitReached(**limited): 429,  # type: ignore[arg-type]  # passed on
        errors.Unavailable("away", remedy="start it"): 503,
        errors.ReservationsUnavailable("away", remedy="start it", retry_after=WAIT): 503,
        errors.DuplicateUnderWay(): 409,
        errors.LimitersUnavailable("away", remedy="start it"): 503,
        errors.QueueUnavailable("away", remedy="start it"): 503,
        errors.EmbeddedUnavailable("away", remedy="start it"): 503,
        errors.StoreUnavailable("away", timed_out=True, remedy="start it"): 503,
        errors.OutcomeUnknown("broke", new_id()): 500,
        errors.DeliveryError("failed"): 500,
        errors.TemporaryFailure("busy", WAIT, closes_channel=True): 500,
        errors.PermanentFailure("never"): 500,
        errors.PerhapsSent("perhaps"): 500,
    }


ERRORS = of_every_class()
NAMED_ELSE = {"status": "message_status", "retry_after": "retry_after_seconds"}
"""Attributes that have another name in a problem: ``status`` is that of the answer."""
OF_ALL = {"type", "title", "status", "detail"}


def as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID) else value


def test_every_error_has_a_status_and_a_type_of_its_own_and_is_tried() -> None:
    named = [value for value in vars(errors).values() if inspect.isclass(value)]
    classes = {kind for kind in named if issubclass(kind, errors.DispatcherError)}
    assert len({problems.problem_kind_of(kind) for kind in classes}) == len(classes)
    assert Counter(map(type, ERRORS)) == Counter(classes)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_problem_has_every_attribute_of_its_error(error: errors.DispatcherError) -> None:
    problem = json.loads(json.dumps(problems.problem_of(error)))
    data = {
        NAMED_ELSE.get(name, name): as_json(value)
        for name, value in vars(error).items()
        if not (name == "retry_after" and value is None)
    }
    assert {name: value for name, value in problem.items() if name not in OF_ALL} == data
    assert problem["status"] == ERRORS[error]
    name = problems.problem_kind_of(type(error))
    assert problem["type"] == f"urn:problem-type:dispatcher:{name}"
    assert problem["detail"].startswith(str(error))


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (errors.ReservationsUnavailable("away", retry_after=WAIT), 503, {"Retry-After": "3"}),
        (errors.ReservationsUnavailable("away"), 503, {"Retry-After": "1"}),
        (errors.DuplicateUnderWay(), 409, {"Retry-After": "1"}),
        (errors.StoreUnavailable("no", refused=True), 422, {}),
        (errors.TooLate(new_id(), "sent"), 409, {}),
    ],
)
def test_a_problem_says_whether_and_when_to_repeat_the_call(
    error: errors.DispatcherError, status: int, headers: dict[str, str]
) -> None:
    assert problems.problem_of(error)["status"] == status
    assert problems.headers_of(error) == headers


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (errors.IdempotencyConflict("secret", new_id()), 422,
         "The idempotency key was used before, for other content. Nothing was changed."),
        (errors.StoreUnavailable("secret:5432 cannot be reached", remedy="start secret"), 503,
         "The database did not execute a statement."),
        (errors.InvalidSettings("secret", "is secret", "secrets"), 500,
         "The configuration contradicts itself or has a value that cannot be used."),
        (errors.PermanentFailure("secret"), 500, "The provider will never accept this message."),
    ],
)  # fmt: skip
def test_callers_of_an_application_are_told_no_servers_settings_or_messages_of_others(
    error: errors.DispatcherError, status: int, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P10: the answers of dispatcher.fastapi and dispatcher.flask may reach the public."""
    told = json.loads(answer_to(error)[0])
    assert told.keys() == {"type", "title", "status", "detail"}
    assert (told["status"], told["detail"]) == (status, sentence)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == (
        [f"answered with {status}: {error}"] if status >= 500 else []
    )
    assert "NoneType" not in caplog.text, "the traceback is that of the error"


def test_a_caller_learns_that_it_may_ask_for_a_message_of_unknown_outcome(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = errors.OutcomeUnknown("broke", new_id())
    act = raising(error)
    monkeypatch.setattr(house.parts.submitter, "submit", lambda *_: act())
    answer = shop.post("/v1/messages", json=new())
    problem = answer.json()
    assert (answer.status_code, problem["message_id"]) == (500, str(error.message_id))
    assert "Retry-After" not in answer.headers
    asks = "ask for message_id, or repeat the call with the same Idempotency-Key"
    assert problem["detail"].endswith(asks)


def test_a_fault_of_ours_is_a_problem_without_its_text(
    house: House, shop: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = raising(RuntimeError("with a secret"))
    monkeypatch.setattr(house.dispatcher, "load", lambda **_: broken())
    app = TestClient(shop.app, raise_server_exceptions=False, headers=dict(shop.headers))
    answer = app.get("/v1/load")
    assert kind(answer) == (500, "internal-error")
    assert "secret" not in answer.text
