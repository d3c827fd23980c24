"""Names and keys of any characters are booked as they are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from dispatcher.message import new_id
from dispatcher.reservation import Submit, Terms
from tests.support.reserving import Reserving, ms

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2100, 1, 2, tzinfo=UTC)
Opened = Callable[..., Reserving]


@pytest.mark.parametrize("name", ["ann", "änn", "a\r\n$1\r\nb", "\0", "🦊" * 9])
@pytest.mark.parametrize("submit", [None, Submit("kéy\r\n", "fingerprint")])
def test_a_message_is_booked_whatever_its_scope_and_key(
    opened: Opened, name: str, submit: Submit | None
) -> None:
    real = opened()
    first, second = new_id(), new_id()
    terms = Terms.plain(name)
    real.windows.reserve(first, terms=terms, send_at=NOON, submit=submit)
    assert real.members(name) == {first: ms(NOON)}
    twin = real.windows.reserve(second, terms=terms, send_at=NOON, submit=submit, latest=LATER)
    if submit is None:
        assert set(real.members(name)) == {first, second}
    else:
        assert twin.message_id == first, "its key is the same to both"
