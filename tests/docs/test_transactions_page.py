"""The code on docs/transactions.md does what the page says."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from dispatcher import QuotaExceeded
from dispatcher.times.clock import SystemClock
from tests.support.callers import callers_engine
from tests.support.house import House
from tests.support.house_fixtures import Build

PAGE = Path(__file__).parents[2] / "docs/transactions.md"


def compiled(code: str) -> CodeType:
    return compile(code, PAGE.name, "exec", dont_inherit=True)


def run_page(house: House, engine: Engine) -> dict[str, Any]:
    """Run all code of the page, with this dispatcher and this engine; return its names."""
    names: dict[str, Any] = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dispatcher.Dispatcher", lambda: house.dispatcher)
        patch.setattr("sqlalchemy.create_engine", lambda _: engine)
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compiled(block), names)  # noqa: S102 - our own page
    return names


def test_an_order_and_its_reminder_commit_together(build: Build) -> None:
    house = build(clock=SystemClock(), channels={"email": {"transport": "memory"}})
    with callers_engine(house.database, table=False) as engine:
        names = run_page(house, engine)
        order, take_order = names["Order"], names["take_order"]
        [message] = [*house.dispatcher.select()]
        rounded = message.send_at - (names["tomorrow"] - timedelta(hours=1))
        assert timedelta(0) <= rounded < timedelta(milliseconds=1)
        with suppress(QuotaExceeded), Session(engine) as session, session.begin():
            take_order(session, order(number=18, email="ben", pickup_at=names["tomorrow"]))
            take_order(session, order(number=19, email="ben", pickup_at=names["tomorrow"]))
            pytest.fail("both fit")
        with Session(engine) as session:
            assert list(session.scalars(select(order.number))) == [17]
    assert [*house.dispatcher.select()] == [message]
    assert house.reservations() == house.all_members()
