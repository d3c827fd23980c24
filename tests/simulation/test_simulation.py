"""Many short stories, a few seeds each, and bugs that they must find."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.simulation.bugs import BUGS, hunt
from tests.simulation.faults import Fault
from tests.simulation.judge import accepted, played, search
from tests.support.examples import a_third_of, examples

FAULTS = examples(20_000)
"""Faults of an ordinary run; ``make simulate`` has more."""
_PARTS, _SEEDS = 6, 1_000


@pytest.mark.parametrize("part", a_third_of(range(_PARTS)))
def test_no_promise_is_broken_whatever_goes_wrong(part: int) -> None:
    hunted = search(faults=FAULTS // _PARTS, first=part * _SEEDS)

    assert hunted.broken == {}, "python -m tests.simulation SEED tells the story"
    assert hunted.faults >= FAULTS // _PARTS


@pytest.mark.long
def test_the_stories_reach_what_they_are_to_break() -> None:
    worlds = [played(seed) for seed in range(2, 5)]

    rows = [row for world in worlds for row in world.store.rows()]
    rows += [pruned.row for world in worlds for pruned in world.facts.pruned.values()]
    assert {"sent", "failed", "cancelled", "expired", "held"} <= {row.status for row in rows}
    assert sum(len(accepted(world)) for world in worlds) > 50
    assert {str(fault) for fault in Fault} <= {
        count for world in worlds for count in world.weather.counts
    }
    assert any(row.scopes for row in rows)
    events = [row.event for row in rows if row.event]
    assert {event.startswith("series:") for event in events} == {True, False}
    assert any(world.facts.pruned for world in worlds)
    assert any(world.facts.delays for world in worlds)
    told = {f"{what} {detail}" for world in worlds for _, _, what, detail in world.story}
    asked = {line.split()[1] for line in told if line.startswith("asks: ")}
    assert asked >= {
        "submit", "suppress", "move_event", "cancel_event", "change_series", "resume_series",
    }  # fmt: skip
    assert any("asks: submit many" in line for line in told)
    assert "store.commit " in told
    assert any(re.search(r"catch_up answers [1-9]", line) for line in told)


@pytest.mark.long
def test_a_seed_tells_the_same_story_in_every_process() -> None:
    digest = played(3).digest()

    program = "from tests.simulation.judge import played; print(played(3).digest())"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == digest
    assert played(4).digest() != digest


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(bug: str) -> None:
    hunted = hunt(bug)

    assert hunted.broken, f"{hunted.faults} faults did not find it"
    assert "AttributeError" not in str(hunted.broken), "the planted bug is out of date"
