"""Bad input is refused by a typed error, and reaches neither Redis nor SQL nor the broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Dispatcher, InvalidDraft, InvalidValue, UnknownChannel
from tests.support.clock import MovableClock
from tests.support.house import FAR
from tests.support.refusals import BAD, CANARY, Bad, settings_nowhere


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dispatcher]:
    """Give a dispatcher that reaches no server."""
    settings = settings_nowhere(tmp_path_factory.mktemp("nowhere"))
    with Dispatcher(settings, clock=MovableClock(FAR)) as dispatcher:
        yield dispatcher


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_judged_before_any_server_is_asked(unreachable: Dispatcher, bad: Bad) -> None:
    with pytest.raises(bad.error) as caught:
        getattr(unreachable, bad.method)(*bad.positional, **bad.arguments())
    error = caught.value
    assert type(error) is bad.error
    assert error.field == bad.field
    assert error.problem
    assert error.accepted
    assert str(error) == f"{error.field}: {error.problem}; accepted: {error.accepted}"
    assert CANARY not in f"{error!r}"
    assert str(error).isprintable(), "the text can be written to any log or terminal"


@pytest.mark.parametrize("value", [None, 5, object()])
@pytest.mark.parametrize(
    ("method", "field", "more"),
    [
        ("submit_many", "drafts", {}),
        ("submit_many", "drafts", {"on_conflict": "shift"}),
        ("submit_many", "drafts", {"atomic": True}),
        ("plan", "drafts", {}),
        ("cancel_many", "message_ids", {}),
        ("reschedule_many", "message_ids", {"send_in": timedelta(hours=1)}),
        ("retry_many", "message_ids", {}),
        ("update_many", "message_ids", {"priority": 1}),
    ],
)
def test_what_is_no_list_is_refused(
    unreachable: Dispatcher, method: str, field: str, more: dict[str, Any], value: Any
) -> None:
    with pytest.raises(InvalidDraft) as refused:
        getattr(unreachable, method)(value, **more)
    assert refused.value.field == field


def test_an_unknown_channel_says_which_are_known(unreachable: Dispatcher) -> None:
    with pytest.raises(UnknownChannel) as caught:
        unreachable.submit("fax", recipient="ada", body={}, send_at=FAR)
    assert caught.value.channel == "fax"
    assert str(caught.value) == (
        "channel: there is no channel 'fax'; accepted: one of console, file, memory"
    )


def test_the_limits_of_a_body_are_those_of_the_settings(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = [{"text": "xx"}, {"a": {"b": {}}}]
    with Dispatcher(settings_nowhere(tmp_path, body_max_bytes=10, body_max_depth=2)) as strict:
        for body in bodies:
            with pytest.raises(InvalidDraft, match="at most 10 bytes and 2 levels"):
                strict.submit("memory", recipient="dora", body=body, send_at=FAR)


@pytest.mark.parametrize(
    ("method", "asked"),
    [("next_slot", {"recipient": "a\nb"}), ("select", {"recipient": "a\0b"})],
    ids=ascii,
)
def test_what_is_asked_of_a_read_is_named(
    unreachable: Dispatcher, method: str, asked: dict[str, Any]
) -> None:
    call = getattr(unreachable, method)
    with pytest.raises(InvalidValue) as caught:
        [*call(**asked)]
    assert caught.value.field in asked
