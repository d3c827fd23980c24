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


class LineCut(errors.TemporaryFailure, ConnectionError):
    """An error of a transport of the user's own."""

    def __init__(self, line: str) -> None:
        super().__init__(line)


SECONDS = timedelta(seconds=5)
NO_ROOM: dict[str, object] = {"reason": "it is full"}
CARRYING: list[tuple[errors.DispatcherError, dict[str, object], list[str]]] = [
    (
        errors.InvalidDraft("recipient", "256 characters", "1 to 255"),
        {"field": "recipient", "problem": "256 characters", "accepted": "1 to 255"},
        ["recipient", "256 characters", "1 to 255"],
    ),
    (errors.InvalidSendTime("send_at", "past", "later"), {"field": "send_at"}, ["past", "later"]),
    (
        errors.UnknownChannel("fax", ["email", "sms"]),
        {"channel": "fax", "known": ("email", "sms"), "field": "channel"},
        ["fax", "email", "sms"],
    ),
    (
        errors.QuotaExceeded(
            quota="1/minute", scope="ann", send_at=NOON, conflicting=[ID], next_slot=NOON
        ),
        {"quota": "1/minute", "scope": "ann", "conflicting": (ID,), "next_slot": NOON},
        ["1/minute", "ann"],
    ),
    (
        errors.QuotaExceeded(
            quota="1/minute", scope="ann", send_at=NOON, conflicting=[ID] * 5, next_slot=NOON
        ),
        {"conflicting": (ID,) * 5},
        [str(ID), "2 more", NOON.isoformat()],
    ),
    (errors.IdempotencyConflict("k", ID), {"key": "k", "message_id": ID}, [str(ID)]),
    (errors.MessageNotFound(ID), {"message_id": ID}, [str(ID)]),
    (errors.TooLate(ID, "sent"), {"message_id": ID, "status": "sent"}, ["sent"]),
    (errors.OutcomeUnknown("down", ID), {"message_id": ID}, [str(ID), "down"]),
    (errors.TemporaryFailure("busy"), {"retry_after": None}, ["busy"]),
    (errors.TemporaryFailure("busy", SECONDS), {"retry_after": SECONDS}, ["busy"]),
    (errors.PermanentFailure("no"), {}, ["no"]),
    (LineCut("line 7"), {"args": ("line 7",)}, ["line 7"]),
    *(
        (kind("it is full"), NO_ROOM, [f"{kind.what} unavailable: it is full"])
        for kind in errors.Unavailable.__subclasses__()
        if "what" in vars(kind)
    ),
]


@pytest.mark.parametrize(
    ("error", "data", "said"), CARRYING, ids=[type(each).__name__ for each, _, _ in CARRYING]
)
def test_an_error_carries_its_data_says_it_and_survives_the_way_between_processes(
    error: errors.DispatcherError, data: dict[str, object], said: list[str]
) -> None:
    """One that cannot be unpickled hangs a process pool and confuses Celery's workers."""
    assert {name: getattr(error, name) for name in data} == data
    assert all(part in str(error) for part in said)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
