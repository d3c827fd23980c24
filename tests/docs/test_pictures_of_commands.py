"""The pictures of the README show what the commands print now."""

from __future__ import annotations

import shutil
from html import unescape
from pathlib import Path

from dispatcher.cli import demo
from docs.pictures import draw_commands
from tests.support.servers import RedisServer

FOLDER = draw_commands.FOLDER
AGAIN = "python -m docs.pictures.draw_commands draws it again"


def picture(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


def test_the_picture_of_the_status_is_true() -> None:
    assert picture("status") == draw_commands.status_svg(), AGAIN


def test_the_picture_of_a_timeline_is_true(
    redis_server: RedisServer, sqlite_template: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    shutil.copy(sqlite_template, path)
    with draw_commands.house_of(redis_server, f"sqlite:///{path}") as house:
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
