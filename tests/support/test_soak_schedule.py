"""The nemesis strikes by its seed alone."""

from __future__ import annotations

from tests.soak.faults import FAULTS
from tests.soak.nemesis import schedule


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert schedule(7, 60) == schedule(7, 60)


def test_another_seed_gives_another_one() -> None:
    assert schedule(7, 60) != schedule(8, 60)


def test_a_short_schedule_is_the_beginning_of_a_long_one() -> None:
    short, long = schedule(7, 30), schedule(7, 60)
    assert long[: len(short)] == short


def test_two_minutes_hold_three_hundred_faults_of_more_than_twenty_kinds() -> None:
    for seed in range(5):
        strikes = schedule(seed, 120)
        assert len(strikes) >= 300
        assert len({strike.fault for strike in strikes}) >= 25


def test_every_kind_comes_at_last() -> None:
    assert {strike.fault for strike in schedule(1, 3_600)} == {fault.name for fault in FAULTS}


def test_only_the_kinds_that_were_named_come() -> None:
    strikes = schedule(1, 60, only=("redis.flush-all", "line.cut"))
    assert {strike.fault for strike in strikes} == {"redis.flush-all", "line.cut"}


def test_strikes_stay_within_the_lengths_of_their_kind() -> None:
    lasts = {fault.name: fault.lasts for fault in FAULTS}
    for strike in schedule(3, 600):
        low, high = lasts[strike.fault]
        assert low <= strike.seconds <= high
