"""The checker of histories finds each kind of broken promise, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from dispatcher.message import Outcome, Status
from tests.support.checks import History, Stored, broken_promises, false_windows
from tests.support.ledger import Event, Line

QUOTAS = [(1, 1_000)]
ANN, BEN = UUID(int=1), UUID(int=2)


def stored(
    id_: UUID = ANN,
    *outcomes: Outcome | None,
    at_ms: int = 10_000,
    status: Status = Status.SENT,
    scope: str = "ann",
) -> Stored:
    tried = outcomes or (Outcome.SENT,)
    return Stored(id=id_, scope=scope, send_at_ms=at_ms, status=status, outcomes=tried)


def line(
    event: Event, id_: UUID = ANN, *, at_ms: float = 10_000, attempt: int = 1, scope: str = "ann"
) -> Line:
    return Line(
        event=event,
        id=id_,
        scope=scope,
        at_us=int(at_ms * 1_000),
        attempt=attempt,
        send_at_ms=10_000,
    )


def send(id_: UUID = ANN, *, at_ms: float = 10_000, attempt: int = 1) -> list[Line]:
    return [
        line("begin", id_, at_ms=at_ms, attempt=attempt),
        line("end", id_, at_ms=at_ms + 5, attempt=attempt),
    ]


def history(
    messages: Sequence[Stored], ledger: Sequence[Line], *, cancelled: Sequence[UUID] = ()
) -> History:
    return History(
        accepted=frozenset(each.id for each in messages),
        stored=messages,
        ledger=ledger,
        cancelled=frozenset(cancelled),
    )


GOOD = {
    "sent once": history([stored()], send()),
    "sent again because the record was lost": history(
        [stored(ANN, Outcome.UNKNOWN, Outcome.SENT)],
        [*send(), *send(at_ms=12_000, attempt=2)],
    ),
    "two exactly one period apart": history(
        [stored(), stored(BEN, at_ms=11_000)], [*send(), *send(BEN, at_ms=11_000)]
    ),
    "a cancelled one in the way of nobody": history(
        [stored(status=Status.CANCELLED), stored(BEN)], send(BEN), cancelled=[ANN]
    ),
}

BAD = {
    "but is not stored": History(accepted=frozenset({ANN}), stored=[], ledger=[]),
    "but is scheduled": history([stored(status=Status.SCHEDULED)], []),
    "counts as sent but never was": history([stored()], [line("begin")]),
    "is stored but was never accepted": History(
        accepted=frozenset(), stored=[stored()], ledger=[]
    ),
    "was sent but never accepted": History(
        accepted=frozenset(), stored=[], ledger=send()
    ),
    "sent twice in one attempt": history(
        [stored()], [*send(), *send(at_ms=12_000)]
    ),
    "sent again though attempt 1 was sent": history(
        [stored(ANN, Outcome.SENT, Outcome.SENT)],
        [*send(), *send(at_ms=12_000, attempt=2)],
    ),
    "0.001 ms early": history([stored()], send(at_ms=9_999.999)),
    "sent though it was cancelled": history(
        [stored(status=Status.CANCELLED)], send(), cancelled=[ANN]
    ),
    "was cancelled but is sent": history([stored()], [], cancelled=[ANN]),
    "was promised more than 1 within 1000 ms": history(
        [stored(), stored(BEN, at_ms=10_999)], [*send(), *send(BEN, at_ms=11_001)]
    ),
    "was sent more than 1 within 1000 ms (999.999 ms)": history(
        [stored(), stored(BEN, at_ms=11_000)],
        [*send(at_ms=10_001), *send(BEN, at_ms=11_000.999)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_breaks_nothing(name: str) -> None:
    assert broken_promises(GOOD[name], QUOTAS) == []


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_history_is_told(problem: str) -> None:
    told = broken_promises(BAD[problem], QUOTAS)
    assert any(problem in each for each in told), told


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
