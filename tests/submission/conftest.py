"""Small batches, and the engine of a caller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.support.callers import callers_engine
from tests.support.house import House

BATCH = 100


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.submission.pipeline.BATCH", BATCH)


@pytest.fixture
def engine(house: House) -> Iterator[Engine]:
    """Give the caller's engine."""
    with callers_engine(house.database) as engine:
        yield engine
