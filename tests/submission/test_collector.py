"""The collector of cycles is off while a batch is processed, and afterwards as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dispatcher.message import read_json, without_collector


@pytest.fixture(autouse=True)
def on_afterwards() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_off_meanwhile_and_then_as_it_was(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled() is was_on
    with pytest.raises(KeyError), without_collector():
        raise KeyError
    assert gc.isenabled() is was_on


def test_json_is_read_without_collections() -> None:
    """Of 20,000 lists in 60 KB it would be thirty, for 100 ms in one call."""
    phases, text = list[str](), "[" + "[]," * 20_000 + "[]]"

    def noted(phase: str, _: object) -> None:
        phases.append(phase)

    gc.callbacks.append(noted)
    try:
        assert len(read_json("body", text)) == 20_001
    finally:
        gc.callbacks.remove(noted)
    assert len(phases) < 10
