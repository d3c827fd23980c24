"""``dispatcher status`` and ``dispatcher top``: the house at a glance, once or live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from dispatcher.cli import show
from dispatcher.cli.app import AsJson, examples
from dispatcher.cli.glance import overview_data, overview_picture, tops_data, tops_picture
from dispatcher.cli.services import until_stopped
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue, Unavailable
from dispatcher.operations.overview import By
from dispatcher.quota import parse_length
from dispatcher.store import Of
from dispatcher.times.clock import SystemClock

_PAUSE = 9
"""A look is followed by a pause of so many times its length: it costs a tenth at most."""
_LEAST = timedelta(milliseconds=100)


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    of_status = (
        "dispatcher status",
        'dispatcher status --watch --every "5 seconds"',
        "dispatcher status --json | jq .overdue",
    )
    of_top = (
        "dispatcher top",
        'dispatcher top --of channel --within "1 hour"',
        "dispatcher top --by fill",
    )
    app.command(epilog=examples(*of_status))(status)
    app.command(epilog=examples(*of_top))(top)


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again until Ctrl-C.")] = (
        False
    ),
    every: Annotated[str, typer.Option(help="With --watch: how often.")] = "2 seconds",
    since: Annotated[str, typer.Option(help="Count what has ended since so long ago.")] = "1 day",
    as_json: AsJson = False,
) -> None:
    """Show what waits, what is late, the next hour, how full limits are, and who is at work.

    Takes nothing and changes nothing. With --watch and --json, a line of JSON for each look.
    """
    length = parse_length(since, "since")
    interval = parse_length(every, "every")
    if interval < _LEAST:
        raise InvalidValue("--every", f"{interval}", f"at least {_LEAST.total_seconds()} seconds")
    with Dispatcher() as dispatcher:
        if watch:
            with until_stopped() as stopped:
                _watch(dispatcher, length, interval, stopped, as_json=as_json)
            return
        found = dispatcher.status(since=length)
    if as_json:
        show.as_json(overview_data(found))
    else:
        show.out.print(overview_picture(found, width=show.out.width))


def top(
    of: Annotated[Of, typer.Option(help="What to rank.")] = "scope",
    by: Annotated[By, typer.Option(help="By messages, or by how full a quota is.")] = "messages",
    within: Annotated[str, typer.Option(help="Count what is due within that time.")] = "1 day",
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Rank the busiest scopes, recipients or channels by what is due, with their fullest quota."""
    with Dispatcher() as dispatcher:
        found = dispatcher.top(of, by=by, within=parse_length(within, "within"), limit=limit)
    if as_json:
        show.as_json(tops_data(found))
    else:
        show.out.print(tops_picture(found))


def _watch(
    dispatcher: Dispatcher, since: timedelta, every: timedelta, stopped: Event, *, as_json: bool
) -> None:
    def look() -> RenderableType:
        try:
            found = dispatcher.status(since=since)
        except Unavailable as error:
            return Text(f"{error}; looking again", style="red")
        return overview_picture(found, width=show.out.width)

    def tell() -> None:
        try:
            show.as_line(overview_data(dispatcher.status(since=since)))
        except Unavailable as error:
            show.as_line({"error": str(error)})

    if as_json or not show.out.is_terminal:
        _repeat(tell if as_json else lambda: show.out.print(look()), every, stopped)
        return
    with Live(console=show.out, auto_refresh=False, screen=True) as live:
        _repeat(lambda: live.update(look(), refresh=True), every, stopped)


def _repeat(look: Callable[[], object], every: timedelta, stopped: Event) -> None:
    clock = SystemClock()
    while not stopped.is_set():
        began = clock.monotonic()
        look()
        took = clock.monotonic() - began
        stopped.wait(max(every.total_seconds() - took, _PAUSE * took))
