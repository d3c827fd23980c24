"""The nemesis strikes by its seed alone."""

from __future__ import annotations

from tests.soak.faults import FAULTS
from tests.soak.nemesis import schedule


def test_a_seed_gives_one_schedule_and_another_seed_another() -> None:
    short, long = schedule(7, 30), schedule(7, 60)

    assert long == schedule(7, 60) != schedule(8, 60)
    assert long[: len(short)] == short


def test_two_minutes_hold_three_hundred_faults_and_every_kind_comes_at_last() -> None:
    assert all(len(schedule(seed, 120)) >= 300 for seed in range(5))
    assert {strike.fault for strike in schedule(1, 3_600)} == {fault.name for fault in FAULTS}


def test_only_the_kinds_that_were_named_come_for_as_long_as_they_last() -> None:
    lasts = {fault.name: fault.lasts for fault in FAULTS}
    strikes = schedule(1, 60, only=("worker.freeze", "line.cut"))

    assert {strike.fault for strike in strikes} == {"worker.freeze", "line.cut"}
    for strike in strikes:
        low, high = lasts[strike.fault]
        assert low <= strike.seconds <= high
