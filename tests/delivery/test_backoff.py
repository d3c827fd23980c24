"""How long a failed message waits."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.delivery.sender import backoff

BASE, LONGEST = timedelta(seconds=5), timedelta(minutes=10)
rolls = st.floats(0, 1, exclude_max=True)


@given(attempt=st.integers(1, 10_000), roll=rolls)
def test_the_wait_lies_between_nothing_and_the_doubled_base(attempt: int, roll: float) -> None:
    wait = backoff(attempt, base=BASE, longest=LONGEST, at_least=None, jitter=roll)
    assert timedelta(0) <= wait <= min(LONGEST, BASE * 2 ** min(attempt - 1, 20))


@given(attempt=st.integers(1, 100), roll=rolls, asked=st.timedeltas(timedelta(0), timedelta(1)))
def test_a_provider_is_never_asked_sooner_than_it_said(
    attempt: int, roll: float, asked: timedelta
) -> None:
    wait = backoff(attempt, base=BASE, longest=LONGEST, at_least=asked, jitter=roll)
    assert asked <= wait <= asked + LONGEST


def test_the_upper_bound_doubles_until_it_is_capped() -> None:
    highest = [
        backoff(n, base=BASE, longest=LONGEST, at_least=None, jitter=1.0) for n in range(1, 10)
    ]
    assert [wait.total_seconds() for wait in highest] == [5, 10, 20, 40, 80, 160, 320, 600, 600]


def test_full_jitter_starts_at_zero() -> None:
    assert backoff(3, base=BASE, longest=LONGEST, at_least=None, jitter=0.0) == timedelta(0)
