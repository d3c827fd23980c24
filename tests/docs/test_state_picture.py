"""The picture of the state machine shows every way that its page lists, and is the one drawn."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from dispatcher.message import Status
from docs.pictures.draw_states import DELETED, NONE, PICTURE, WAYS, svg

PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"
FINAL = [each.value for each in Status if each.is_final]
KNOWN = {NONE, DELETED, *(each.value for each in Status)}


def listed() -> set[tuple[str, str]]:
    """Return the ways of the table, one for each pair; a row may tell of several statuses."""
    found: set[tuple[str, str]] = set()
    for row in PAGE.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\| ([^|]+) → ([^|(]+)", row)
        if match is None or match[1] == "from":
            continue
        sources, targets = (
            re.findall(r"\w+", each.partition(", which")[0]) for each in match.groups()
        )
        sources = [each for name in sources for each in (FINAL if name == "final" else [name])]
        found |= set(product(sources, targets))
    return {pair for pair in found if pair[1] != "void"}


def test_it_shows_every_way_that_is_listed_and_no_other() -> None:
    pruned = {(each, DELETED) for each in FINAL}
    ways = {(each.source, each.target) for each in WAYS}
    assert {name for pair in listed() for name in pair} == KNOWN
    assert ways | pruned == listed()
    assert not ways & pruned, "said below it"


def test_it_is_the_one_drawn() -> None:
    again = "python -m docs.pictures.draw_states draws it again"
    assert PICTURE.read_text(encoding="utf-8") == svg(), again
