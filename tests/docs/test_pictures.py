"""The pictures show what the commands print now, and every way of the state machine."""

from __future__ import annotations

import re
from html import unescape
from itertools import product
from pathlib import Path

from dispatcher.cli import demo
from dispatcher.message import Status
from docs.pictures import draw_commands
from docs.pictures.draw_states import DELETED, NONE, PICTURE, WAYS, svg
from tests.docs.pages import page
from tests.support.servers import RedisServer

FOLDER = draw_commands.FOLDER
AGAIN = "python -m docs.pictures.draw_commands draws it again"
FINAL = [each.value for each in Status if each.is_final]
KNOWN = {NONE, DELETED, *(each.value for each in Status)}


def picture(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


def test_the_picture_of_the_status_is_true() -> None:
    assert picture("status") == draw_commands.status_svg(), AGAIN


def test_the_picture_of_a_timeline_is_true(redis_server: RedisServer, sqlite_url: str) -> None:
    with draw_commands.house_of(redis_server, sqlite_url) as house:
        assert picture("timeline") == draw_commands.timeline_svg(house), AGAIN


def test_the_picture_of_the_demo_shows_each_of_its_steps() -> None:
    """It shows the times of the day on which it was drawn, so only its words are compared."""
    shown = unescape(picture("demo")).replace("\xa0", " ")
    source = Path(demo.__file__).read_text(encoding="utf-8")
    headings = [line.split("[bold]")[1].split("[/]")[0] for line in source.splitlines()
                if '[bold]' in line and line.split("[bold]")[1][0].isdigit()]  # fmt: skip
    assert len(headings) == 4
    for heading in (*headings, "every promise was kept"):
        assert heading in shown, AGAIN


def listed() -> set[tuple[str, str]]:
    """Return the ways of the list, one for each pair; a line may tell of several statuses."""
    found: set[tuple[str, str]] = set()
    for row in page("docs/guarantees.md").splitlines():
        match = re.match(r"- ([^:]+) → ([^:(]+)", row)
        if match is None:
            continue
        sources, targets = (
            re.findall(r"\w+", each.partition(", which")[0]) for each in match.groups()
        )
        sources = [each for name in sources for each in (FINAL if name == "final" else [name])]
        found |= set(product(sources, targets))
    return {pair for pair in found if pair[1] != "void"}


def test_the_picture_of_states_shows_every_way_that_is_listed_and_no_other() -> None:
    pruned = {(each, DELETED) for each in FINAL}
    ways = {(each.source, each.target) for each in WAYS}
    assert {name for pair in listed() for name in pair} == KNOWN
    assert ways | pruned == listed()
    assert not ways & pruned, "said below it"


def test_the_picture_of_states_is_the_one_drawn() -> None:
    again = "python -m docs.pictures.draw_states draws it again"
    assert PICTURE.read_text(encoding="utf-8") == svg(), again
