"""A booking of one message goes past redis-py's own way, and comes to the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dispatcher.message import new_id
from dispatcher.redis.direct import Direct
from dispatcher.reservation import Submit, Terms
from tests.support.reserving import Reserving, ms

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2100, 1, 2, tzinfo=UTC)
Opened = Callable[..., Reserving]


@pytest.mark.parametrize("name", ["ann", "änn", "a\r\n$1\r\nb", "\0", "🦊" * 9])
@pytest.mark.parametrize("submit", [None, Submit("kéy\r\n", "fingerprint")])
def test_a_booking_is_the_same_past_redis_py_and_by_it(
    opened: Opened, name: str, submit: Submit | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = opened()
    past: list[Any] = []
    call = Direct.call

    def record(self: Direct, command: Any) -> Any:
        past.append(command)
        return call(self, command)

    monkeypatch.setattr(Direct, "call", record)
    first, second = new_id(), new_id()
    terms = Terms.plain(name)
    real.windows.reserve(first, terms=terms, send_at=NOON, submit=submit)
    assert len(past) == 1
    assert real.members(name) == {first: ms(NOON)}
    monkeypatch.setattr(Direct, "open", False)
    twin = real.windows.reserve(second, terms=terms, send_at=NOON, submit=submit, latest=LATER)
    assert len(past) == 1
    if submit is None:
        assert set(real.members(name)) == {first, second}
    else:
        assert twin.message_id == first, "its key is the same to both"
