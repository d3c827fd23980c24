"""The collector of cycles is off while a batch is worked on, and afterwards as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dispatcher.submission.many import uncollected


@pytest.fixture(autouse=True)
def on_afterwards() -> Iterator[None]:
    yield
    gc.enable()


@uncollected
def work(*, fails: bool = False) -> bool:
    if fails:
        raise KeyError
    return gc.isenabled()


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_off_meanwhile_and_then_as_it_was(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    assert work() is False
    assert gc.isenabled() is was_on
    with pytest.raises(KeyError):
        work(fails=True)
    assert gc.isenabled() is was_on
