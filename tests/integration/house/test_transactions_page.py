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
from tests.integration.house.conftest import Build
from tests.support.callers import callers_engine
from tests.support.house import FAR, House

PAGE = Path(__file__).parents[3] / "docs/transactions.md"


def compiled(code: str) -> CodeType:
    return compile(code, PAGE.name, "exec", dont_inherit=True)


def run_page(house: House, engine: Engine) -> dict[str, Any]:
    """Run all code of the page; return its names."""
    definitions, use = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"dispatcher": house.dispatcher, "engine": engine, "__name__": "page"}
    names["tomorrow"] = FAR + timedelta(days=1)
    exec(compiled(definitions), names)  # noqa: S102 - our own page
    names["Base"].metadata.create_all(engine)
    exec(compiled(use), names)  # noqa: S102
    return names


def test_an_order_and_its_reminder_commit_together(build: Build) -> None:
    house = build(channels={"email": {"transport": "memory"}})
    with callers_engine(house.database, table=False) as engine:
        names = run_page(house, engine)
        order, take_order = names["Order"], names["take_order"]
        [message] = house.dispatcher.find()
        assert message.send_at == names["tomorrow"] - timedelta(hours=1)
        with suppress(QuotaExceeded), Session(engine) as session, session.begin():
            take_order(session, order(number=18, email="ben", pickup_at=names["tomorrow"]))
            take_order(session, order(number=19, email="ben", pickup_at=names["tomorrow"]))
            pytest.fail("both fit")
        with Session(engine) as session:
            assert list(session.scalars(select(order.number))) == [17]
    assert house.dispatcher.find() == [message]
    assert house.places() == house.all_members()
