"""An outcome is recorded whatever its text, also where the database cannot store the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher import (
    Draft,
    Message,
    Outcome,
    PerhapsSent,
    PermanentFailure,
    Rejection,
    Status,
    StoreUnavailable,
    TemporaryFailure,
)
from tests.support.examining import finding_of
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build
from tests.support.servers import PostgresServer
from tests.support.tables import migrate_at

DAY = timedelta(days=1)


class Unspeakable(Exception):
    """Cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


TEXTS: dict[str, Any] = {
    "of Europe": "reçu",
    "of no 8-bit encoding": "reçu ✓ 收据 👍",
    "NUL": "a\0b",
    "half a pair": "a\ud800b",
    "long": "é✓" * 1_000_000,
    "a number without a text": 10**5_000,
    "bytes": b"\xff\x00",
    "an object": {"id": [7, ""]},
    "unspeakable": Unspeakable(),
}
WAITS: tuple[Any, ...] = (timedelta.max, timedelta.min, float("nan"), 10**30, "30", -DAY)


def outcomes_of(house: House, answers: list[Callable[[], Any]]) -> list[Outcome | None]:
    """Let a group get these answers, each once; return the outcomes as they are stored."""
    messages = [house.submit(f"r{number}") for number in range(len(answers))]
    by_recipient = {f"r{number}": answer for number, answer in enumerate(answers)}

    sent: list[str] = []

    class Provider:
        def send(self, message: Message) -> Any:
            sent.append(message.recipient)
            return by_recipient[message.recipient]()

    house.swap("transports", {"memory": Provider()})
    house.deliver(*messages)
    house.end_claims(*messages)
    house.parts.sweep.rescue()
    assert sorted(sent) == sorted(by_recipient)
    assert all(house.again(message).attempt_count == 1 for message in messages)
    assert not any(house.again(message).status is Status.SENDING for message in messages)
    return [outcome for message in messages for outcome in house.outcomes(message)]


def record_all(house: House) -> None:
    texts, waits = [*TEXTS.values()], [*WAITS]
    answers: list[Callable[[], Any]] = [Mock(return_value=text) for text in texts]
    expected = [Outcome.SENT] * len(texts)
    for kind, outcome in (
        (PermanentFailure, Outcome.PERMANENT),
        (TemporaryFailure, Outcome.TEMPORARY),
        (PerhapsSent, Outcome.UNKNOWN),
        (ValueError, Outcome.UNKNOWN),
    ):
        answers += [Mock(side_effect=kind(text)) for text in texts]
        expected += [outcome] * len(texts)
    answers += [Mock(side_effect=TemporaryFailure("✓", retry_after=wait)) for wait in waits]
    expected += [Outcome.TEMPORARY] * len(waits)
    answers.append(Mock(side_effect=Unspeakable()))
    expected.append(Outcome.UNKNOWN)
    assert outcomes_of(house, answers) == expected


@pytest.mark.every_database
def test_every_outcome_is_recorded(build: Build) -> None:
    record_all(build(clock=hour_ago(), quotas="9/day"))


@pytest.fixture
def latin1(postgres: PostgresServer) -> Iterator[str]:
    """Give the URL of a migrated database whose encoding lacks most characters."""
    postgres.execute(
        "CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    url = postgres.url("latin1")
    migrate_at(url)
    yield url
    postgres.drop_database("latin1")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_encoding_that_lacks_characters(
    build: Build, latin1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(
        clock=hour_ago(), url=latin1, quotas="9/day", scopes={"tenant": {"quotas": "9/day"}}
    )
    record_all(house)
    finding = finding_of(house, "store.encoding")
    assert (finding.level.name, "LATIN1" in finding.found) == ("WARNING", True)
    before = house.snapshot()
    with pytest.raises(StoreUnavailable, match="encoding lacks") as refused:
        house.submit("ada", body={"text": "你好"}, send_in=DAY)
    assert refused.value.refused
    assert house.snapshot() == before
    with pytest.raises(StoreUnavailable, match="encoding lacks"):
        house.dispatcher.pause("campaign", "你好")
    refuse_alone(house, monkeypatch)


def refuse_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft with a text that is refused, be it asked for before it is stored, stops no other."""
    monkeypatch.setattr("dispatcher.submission.pipeline.BATCH", 3)
    bad = [{name: "你"} for name in ("recipient", "idempotency_key", "campaign", "scope")]
    usual: dict[str, Any] = {"channel": "memory", "body": {}, "send_in": DAY}
    drafts = [
        Draft(**usual | {"recipient": f"r{number}"} | more)
        for number, more in enumerate(asked for wrong in bad for asked in ({}, wrong, {}))
    ]
    results = house.dispatcher.submit_many(drafts)
    refused = [result for result in results if isinstance(result, Rejection)]
    assert [result.number for result in refused] == [1, 4, 7, 10]
    assert all("encoding lacks" in str(result.error) for result in refused)
    before = house.snapshot()
    assert {*map(type, house.dispatcher.submit_many(drafts[:6], atomic=True))} == {Rejection}
    assert house.snapshot() == before
