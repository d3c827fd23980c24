"""Drafts that count against the same scope are decided in order, whatever shards it lies in."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Draft, Message, Rejection
from dispatcher.errors import SlotRefused
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build

HOUR = timedelta(hours=1)
SETTINGS: dict[str, Any] = {
    "channels": {"memory": {"transport": "memory", "quotas": ["2/day"]}},
    "scopes": {"tenant": {"quotas": ["3/2 hour", "8/day"]}},
    "quotas": ["1/30 minute"],
}


@pytest.fixture(params=[1, 64], ids=["one shard", "many shards"])
def houses(
    request: pytest.FixtureRequest, build: Build, sqlite_template: Path, tmp_path: Path
) -> tuple[House, House]:
    """Give two houses with the same quotas, and neither knows of the other."""
    found = []
    for name in ("batch", "alone"):
        path = tmp_path / f"{name}.db"
        shutil.copy(sqlite_template, path)
        found.append(
            build(url=f"sqlite:///{path}", namespace=name, shards=request.param, **SETTINGS)
        )
    return found[0], found[1]


@pytest.fixture
def database_url() -> str:
    """Give no database: each house has its own."""
    return ""


def draft(rng: random.Random, shift: bool) -> Draft:
    more: dict[str, Any] = {"on_conflict": "shift"} if shift and rng.random() < 0.5 else {}
    if more and rng.random() < 0.5:
        more["latest"] = FAR + 30 * HOUR
    if rng.random() < 0.7:
        more["scopes"] = {"tenant": f"tenant {rng.randrange(3)}"}
    return Draft(
        channel="memory",
        recipient=f"person {rng.randrange(6)}",
        body=BODY,
        send_at=FAR + rng.randrange(60) * HOUR / 2,
        **more,
    )


def seen(each: Message | Rejection) -> Any:
    return each.send_at if isinstance(each, Message) else each.reason


def one_by_one(house: House, drafts: list[Draft]) -> list[Any]:
    """Return what comes of each draft that is submitted on its own."""

    def submitted(each: Draft) -> Message | Rejection:
        try:
            return house.parts.submitter.submit(each, house.parts.own_transaction)
        except SlotRefused as refused:
            return Rejection(0, each, refused)

    return [seen(submitted(each)) for each in drafts]


def window_times(house: House) -> list[tuple[str, list[int]]]:
    return sorted((name, sorted(each.values())) for name, each in house.all_members().items())


@pytest.mark.parametrize("seed", range(3))
def test_many_drafts_come_to_what_they_come_to_one_by_one(
    houses: tuple[House, House], seed: int
) -> None:
    batch, alone = houses
    rng = random.Random(seed)  # noqa: S311 - a test
    drafts = [draft(rng, shift=True) for _ in range(40)]
    expected = one_by_one(alone, drafts)
    plan = batch.dispatcher.plan(drafts)
    assert [seen(each) for each in plan.rejections] == [
        each for each in expected if isinstance(each, str)
    ]
    assert plan.last_send_at == max(each for each in expected if not isinstance(each, str))
    assert [seen(each) for each in batch.dispatcher.submit_many(drafts)] == expected
    assert window_times(batch) == window_times(alone)


@pytest.mark.parametrize("seed", range(6))
def test_all_or_none_takes_what_fits_one_by_one(houses: tuple[House, House], seed: int) -> None:
    batch, alone = houses
    rng = random.Random(seed)  # noqa: S311 - a test
    drafts = [draft(rng, shift=seed % 3 == 0) for _ in range(2 + seed % 3)]
    expected = one_by_one(alone, drafts)
    found = batch.dispatcher.submit_many(drafts, atomic=True)
    refused = [number for number, each in enumerate(expected) if isinstance(each, str)]
    if refused:
        own = [
            each for each in found if isinstance(each, Rejection) and each.reason != "BatchRefused"
        ]
        assert [each.number for each in own] == refused
        assert not any(isinstance(each, Message) for each in found)
        assert window_times(batch) == []
    else:
        assert [seen(each) for each in found] == expected
        assert window_times(batch) == window_times(alone)


def test_of_two_drafts_for_the_last_place_of_a_day_the_first_gets_it(
    houses: tuple[House, House],
) -> None:
    house, _ = houses
    for day in range(32):
        at = FAR + timedelta(days=3 * day)
        three = [
            Draft(channel="memory", recipient=f"person {day} {n}", body=BODY, send_at=at)
            for n in range(3)
        ]
        assert [isinstance(each, Message) for each in house.dispatcher.submit_many(three)] == [
            True, True, False,
        ], day  # fmt: skip
