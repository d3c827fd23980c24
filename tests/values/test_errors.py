"""One tree, drawn where it is made; every error carries its data and says it."""

from __future__ import annotations

import inspect
import pickle
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dispatcher import errors

ID = UUID(int=7)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def classes() -> dict[str, type[BaseException]]:
    return {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, BaseException)
    }


def drawn() -> dict[str, str | None]:
    """Read the tree in the module's docstring: each name with its parent's."""
    path: list[tuple[int, str]] = []
    tree: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}([│├└─ ]*)([A-Z]\w+)", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while path and path[-1][0] >= depth:
            path.pop()
        tree[name] = path[-1][1] if path else None
        path.append((depth, name))
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        name: next((base.__name__ for base in each.__bases__ if base.__name__ in classes()), None)
        for name, each in classes().items()
    }
    assert drawn() == real


def test_every_error_has_the_one_root() -> None:
    assert all(issubclass(each, errors.DispatcherError) for each in classes().values())
    assert issubclass(errors.InvalidValue, ValueError)


def test_a_refused_value_says_field_problem_and_what_is_accepted() -> None:
    error = errors.InvalidDraft("recipient", "256 characters", "1 to 255")
    assert (error.field, error.problem, error.accepted) == (
        "recipient", "256 characters", "1 to 255",
    )  # fmt: skip
    assert all(part in str(error) for part in ("recipient", "256 characters", "1 to 255"))


def test_an_unknown_channel_names_the_known_ones() -> None:
    error = errors.UnknownChannel("fax", ["email", "sms"])
    assert (error.channel, error.known, error.field) == ("fax", ("email", "sms"), "channel")
    assert all(name in str(error) for name in ("fax", "email", "sms"))


@pytest.mark.parametrize(("conflicts", "more"), [(1, None), (3, None), (5, "2 more")])
def test_a_quota_refusal_says_all_in_one_sentence(conflicts: int, more: str | None) -> None:
    ids = [UUID(int=n) for n in range(conflicts)]
    slot = NOON + timedelta(minutes=1)
    error = errors.QuotaExceeded(
        quota="1/minute", scope="ann", send_at=NOON, conflicting=ids, next_slot=slot
    )
    assert error.quota == "1/minute"
    assert error.scope == "ann"
    assert error.send_at == NOON
    assert error.conflicting == tuple(ids)
    assert error.next_slot == slot
    text = str(error)
    assert all(part in text for part in ("1/minute", "ann", NOON.isoformat(), slot.isoformat()))
    assert str(ids[0]) in text
    assert (more in text) if more else ("more" not in text)
    assert "\n" not in text


def test_a_key_conflict_names_the_message_that_has_the_key() -> None:
    error = errors.IdempotencyConflict("k", ID)
    assert (error.key, error.message_id) == ("k", ID)
    assert str(ID) in str(error)


def test_errors_about_a_message_carry_its_id() -> None:
    assert errors.MessageNotFound(ID).message_id == ID
    assert str(ID) in str(errors.MessageNotFound(ID))
    late = errors.TooLate(ID, "sent")
    assert (late.message_id, late.status) == (ID, "sent")
    assert "sent" in str(late)


@pytest.mark.parametrize(
    "kind",
    [
        errors.ReservationsUnavailable,
        errors.LimitersUnavailable,
        errors.QueueUnavailable,
        errors.StoreUnavailable,
    ],
)
def test_unavailable_says_what_and_why(kind: type[errors.Unavailable]) -> None:
    error = kind("it is out of memory")
    assert error.reason == "it is out of memory"
    assert str(error) == f"{kind.what} unavailable: it is out of memory"


def test_an_unknown_outcome_names_the_message_to_look_up() -> None:
    error = errors.OutcomeUnknown("the line broke", ID)
    assert error.message_id == ID
    assert str(ID) in str(error)
    assert "the line broke" in str(error)


def test_a_temporary_failure_may_name_a_wait() -> None:
    assert errors.TemporaryFailure("busy").retry_after is None
    assert errors.TemporaryFailure("busy", timedelta(seconds=5)).retry_after == timedelta(seconds=5)


def everyone() -> list[errors.DispatcherError]:
    """Return one of each kind that carries data."""
    return [
        errors.InvalidSendTime("send_at", "past", "later"),
        errors.UnknownChannel("fax", ["sms"]),
        errors.QuotaExceeded(
            quota="1/minute", scope="ann", send_at=NOON, conflicting=[ID], next_slot=NOON
        ),
        errors.IdempotencyConflict("k", ID),
        errors.MessageNotFound(ID),
        errors.TooLate(ID, "sent"),
        errors.StoreUnavailable("down"),
        errors.OutcomeUnknown("down", ID),
        errors.TemporaryFailure("busy", timedelta(seconds=5)),
        errors.PermanentFailure("no"),
    ]


@pytest.mark.parametrize("error", everyone(), ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_between_processes(error: errors.DispatcherError) -> None:
    """One that cannot be unpickled hangs a process pool and confuses Celery's workers."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(("value", "kind"), [(1, "an int"), ("x", "a str"), (None, "nothing")])
def test_a_value_is_named_with_its_article(value: object, kind: str) -> None:
    assert errors.kind_of(value) == kind
