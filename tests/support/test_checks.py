"""The checker of histories finds each kind of broken promise, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from dispatcher.message import Outcome, Status
from tests.support.checks import History, Stored, broken_promises, false_windows
from tests.support.ledger import Line

QUOTAS = [(1, 1_000)]
ANN, BEN = UUID(int=1), UUID(int=2)


def stored(
    id_: UUID = ANN, *outcomes: Outcome, at_ms: int = 10_000, status: Status = Status.SENT
) -> Stored:
    tried = outcomes or (Outcome.SENT,)
    return Stored(id=id_, scope="ann", send_at_ms=at_ms, status=status, outcomes=tried)


def send(id_: UUID = ANN, *, at_ms: float = 10_000, attempt: int = 1) -> list[Line]:
    at_us = int(at_ms * 1_000)
    begin = Line(
        event="begin", id=id_, scope="ann", at_us=at_us, attempt=attempt, send_at_ms=10_000
    )
    return [begin, replace(begin, event="end", at_us=at_us + 5_000)]


def history(
    messages: Sequence[Stored], ledger: Sequence[Line], *, cancelled: Sequence[UUID] = ()
) -> History:
    accepted = frozenset(message.id for message in messages)
    return History(
        accepted=accepted, stored=messages, ledger=ledger, cancelled=frozenset(cancelled)
    )


AGAIN = [*send(), *send(at_ms=12_000, attempt=2)]
CANCELLED = stored(status=Status.CANCELLED)
NOBODY: frozenset[UUID] = frozenset()
HISTORIES = {
    "sent again because the record was lost": (
        "", history([stored(ANN, Outcome.UNKNOWN, Outcome.SENT)], AGAIN)
    ),
    "two exactly one period apart": (
        "", history([stored(), stored(BEN, at_ms=11_000)], [*send(), *send(BEN, at_ms=11_000)])
    ),
    "a cancelled one in the way of nobody": (
        "", history([CANCELLED, stored(BEN)], send(BEN), cancelled=[ANN])
    ),
    "gone": ("but is not stored", History(accepted=frozenset({ANN}), stored=[], ledger=[])),
    "late": ("but is scheduled", history([stored(status=Status.SCHEDULED)], [])),
    "cut short": ("counts as sent but never was", history([stored()], send()[:1])),
    "refused and stored": (
        "is stored but was never accepted",
        History(accepted=NOBODY, stored=[stored()], ledger=[]),
    ),
    "refused and sent": (
        "was sent but never accepted", History(accepted=NOBODY, stored=[], ledger=send())
    ),
    "twice": ("sent twice in one attempt", history([stored()], [*send(), *send(at_ms=12_000)])),
    "known and sent again": (
        "sent again though attempt 1 was sent",
        history([stored(ANN, Outcome.SENT, Outcome.SENT)], AGAIN),
    ),
    "early": ("0.001 ms early", history([stored()], send(at_ms=9_999.999))),
    "cancelled and sent": (
        "sent though it was cancelled", history([CANCELLED], send(), cancelled=[ANN])
    ),
    "not cancelled": ("was cancelled but is sent", history([stored()], [], cancelled=[ANN])),
    "over the quota": (
        "was promised more than 1 within 1000 ms",
        history([stored(), stored(BEN, at_ms=10_999)], [*send(), *send(BEN, at_ms=11_001)]),
    ),
    "over the limit": (
        "was sent more than 1 within 1000 ms (999.999 ms)",
        history(
            [stored(), stored(BEN, at_ms=11_000)],
            [*send(at_ms=10_001), *send(BEN, at_ms=11_000.999)],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_told_what_it_breaks(name: str) -> None:
    problem, judged = HISTORIES[name]
    told = broken_promises(judged, QUOTAS)
    assert any(problem in text for text in told) if problem else told == [], told


@pytest.mark.parametrize(
    ("windows", "problem"),
    [
        ({}, "ann: 00000000-0000-0000-0000-000000000001 has no reservation"),
        ({"ann": {ANN: 10_000, BEN: 1}}, "has a needless one"),
        ({"ann": {ANN: 10_001}}, "is reserved at 10001 instead of 10000"),
    ],
)
def test_windows_that_differ_from_sql_are_told(
    windows: dict[str, dict[UUID, int]], problem: str
) -> None:
    (told,) = false_windows(windows, [stored(), stored(BEN, status=Status.CANCELLED)])
    assert problem in told
