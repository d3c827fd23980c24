"""Draws what commands print: docs/pictures/status.svg, timeline.svg and demo.svg.

The overview is made up, the timeline is that of a real house whose clock stands still, and the demo
is played. Run it from the root of the repository: ``python -m docs.pictures.draw_commands``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from uuid import UUID

from dispatcher.celery.configuration import DUTIES
from dispatcher.cli import demo, output
from dispatcher.cli.status import overview_picture, timeline_picture
from dispatcher.limiters.permits import ChannelFill, LimitFill
from dispatcher.message import Status
from dispatcher.operations.overview import Overview
from dispatcher.store.database import Database
from dispatcher.store.listing import Counts, Load, OverdueFigure
from dispatcher.store.migrate import migrate
from dispatcher.telemetry.liveness import Sign
from tests.support.clock import MovableClock
from tests.support.house import BODY, House, house_on
from tests.support.servers import RedisServer

FOLDER = Path(__file__).parent
NOW = datetime(2026, 11, 20, 12, 4, 30, tzinfo=UTC)
WIDTH = 96
CHANNELS: dict[str, Any] = {
    "sms": {"transport": "memory", "quiet_hours": "21:00-08:00", "quotas": ["200/hour"]},
}
_SECOND, _MINUTE, _HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def overview() -> Overview:
    """Return how things might stand."""
    minutes = [0, 2, 0, 1, 0, 0, 3, 9, 31, 64, 120, 96, 71, 40, 22, 12, 8, 5, 3, 3]
    sms = {
        Status.SCHEDULED: 18_204, Status.SENDING: 12, Status.SENT: 92_311, Status.FAILED: 4,
        Status.CANCELLED: 310,
    }  # fmt: skip
    email = {
        Status.SCHEDULED: 2_950, Status.HELD: 2, Status.SENT: 8_010, Status.EXPIRED: 7,
    }  # fmt: skip
    often = {name: each.interval == "sweep_interval" for name, each in DUTIES.items()}
    age = {name: 1 if often[name] else 24 for name, each in DUTIES.items() if not each.is_needed}
    return Overview(
        counts=Counts(
            now=NOW,
            since=timedelta(days=1),
            by_channel={"email": email, "sms": sms},
            complete=True,
        ),
        overdue=OverdueFigure(
            many=3, oldest=UUID("019a9f3c-6d1b-7c52-9be1-0c5f2f7d4a10"), longest=95 * _SECOND
        ),
        load=Load(
            start=NOW.replace(second=0), minutes=(*minutes, *minutes[::-1], *minutes), complete=True
        ),
        limits=(
            ChannelFill(
                channel="sms",
                limits=(
                    LimitFill(limit="100/second", used=87, most=100),
                    LimitFill(limit="200000/day in Europe/Berlin", used=92_625, most=200_000),
                    LimitFill(limit="concurrency 20", used=12, most=20),
                ),
                waiting=41,
                closed_until=None,
            ),
        ),
        workers=(
            Sign(name="celery@one 4711", age=_SECOND),
            Sign(name="celery@two 4712", age=_SECOND),
            Sign(name="celery@three 9", age=3 * _MINUTE),
        ),
        beats=(Sign(name="beat@one 4713", age=_SECOND),),
        duties=tuple(Sign(name=name, age=seconds * _SECOND) for name, seconds in age.items()),
        items_rejected=0,
        silence=None,
    )


def status_svg() -> str:
    """Draw the overview."""
    return drawn(
        "dispatcher status",
        lambda console: console.print(overview_picture(overview())),
    )


def house_of(server: RedisServer, url: str) -> House:
    """Return a house on an emptied Redis and a migrated database, whose clock stands at ``NOW``."""
    return house_on(server, url, clock=MovableClock(NOW), channels=CHANNELS)


def timeline_svg(house: House) -> str:
    """Book some messages in a house, and draw the timeline of their scope."""
    start = NOW.replace(minute=0, second=0)
    for minutes in (75, 80, 85, 90, 95, 240, 300, 301, 480, 1_200):
        house.dispatcher.submit(
            channel="sms", recipient="ada", body=BODY, send_at=start + minutes * _MINUTE
        )
    found = house.dispatcher.timeline(
        "ada", channel="sms", zone="Europe/Berlin", start=start, length=28 * _HOUR
    )

    def say(console: output.Terminal) -> None:
        with patch.object(output, "out", console):
            console.print(timeline_picture(found))

    return drawn("dispatcher timeline ada --channel sms --hours 28", say)


def demo_svg() -> str:
    """Play the demo, which takes half a minute, and draw it."""

    def play(console: output.Terminal) -> None:
        before, output.out = output.out, console
        try:
            demo.demo()
        finally:
            output.out = before

    return drawn("dispatcher demo", play)


def drawn(title: str, say: Callable[[output.Terminal], object]) -> str:
    """Return what is said as a picture, the same for the same words, without fonts from afar."""
    console = output.Terminal(
        record=True, width=WIDTH, file=StringIO(), color_system="truecolor", highlight=False
    )
    say(console)
    name = title.split()[1]
    return _FONTS.sub("", console.export_svg(title=title, unique_id=name)) + "\n"


def main() -> None:
    """Write the pictures."""
    with TemporaryDirectory() as folder, RedisServer() as server:
        url = f"sqlite:///{folder}/store.db"
        with closing(Database(url)) as database:
            migrate(database)
        with house_of(server, url) as house:
            pictures = {"status": status_svg(), "timeline": timeline_svg(house)}
    pictures["demo"] = demo_svg()
    for name, picture in pictures.items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
