"""What is to come and what was refused: the load of each channel, refusals by rule, what if."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from starlette.responses import Response

from dispatcher.errors import InvalidValue, ReservationsUnavailable
from dispatcher.operations.overview import ChannelLoad, LoadedMinute, LoadToCome
from dispatcher.web.access import Right
from dispatcher.web.pages.cached_figures import LOADS
from dispatcher.web.pages.site import Page, Visit

WIDTH, HEIGHT = 960, 96
_BARS = 96
_MOST_MINUTES = 60
_LAST = 20
_SINCE = {"1": "hour", "24": "day", "168": "week"}
_MINUTE = timedelta(minutes=1)


class Bar(NamedTuple):
    """A stretch of time in a picture: how many are due, and whether a minute is overbooked."""

    x: float
    width: float
    height: float
    at: datetime
    due: int
    overbooked: bool


@dataclass(frozen=True, kw_only=True)
class ChannelChart:
    """The load of a channel as it is drawn. ``minutes`` are the fullest, by time."""

    load: ChannelLoad
    due: int
    overbooked: int
    bars: Sequence[Bar]
    most: int
    minutes: Sequence[LoadedMinute]


def load(visit: Visit) -> Response:
    """Show what is due in the coming day or week, and when it leaves."""
    visit.caller.check_unbound()
    name = visit.query.get("within", "")
    name = name if name in LOADS else "day"
    found = visit.site.figures.load(visit.dispatcher, LOADS[name])
    only = visit.query.get("channel")
    shown = [_shown(each, found) for each in found.channels if only is None or each.channel == only]
    step = (found.end - found.start) / _BARS
    return visit.show("load.html", found=found, shown=shown, within=name, lengths=LOADS,
                      step=step, width=WIDTH, height=HEIGHT)  # fmt: skip


def _shown(channel: ChannelLoad, found: LoadToCome) -> ChannelChart:
    overbooked = [each for each in channel.minutes if each.overbooked]
    fullest = sorted(channel.minutes, key=lambda each: (not each.overbooked, -each.due))
    bars = list(_bars(channel.minutes, found))
    return ChannelChart(
        load=channel,
        due=sum(each.due for each in channel.minutes),
        overbooked=len(overbooked),
        bars=bars,
        most=max((each.due for each in bars), default=0),
        minutes=sorted(fullest[:_MOST_MINUTES], key=lambda each: each.at),
    )


def _bars(minutes: Sequence[LoadedMinute], found: LoadToCome) -> Iterator[Bar]:
    step = (found.end - found.start) / _BARS
    due, overbooked = [0] * _BARS, [False] * _BARS
    for each in minutes:
        number = int((each.at - found.start) / step)
        due[number] += each.due
        overbooked[number] |= each.overbooked
    most, width = max(due, default=0), WIDTH / _BARS
    for number in range(_BARS):
        if due[number]:
            height = max(2.0, round(HEIGHT * due[number] / most, 1))
            at = found.start + number * step
            yield Bar(number * width, width - 1, height, at, due[number], overbooked[number])


def refusals(visit: Visit) -> Response:
    """Show which rules refused how many, and what another quota would have done."""
    visit.caller.check_unbound()
    given = visit.query
    since = given.get("since", "")
    since = since if since in _SINCE else "24"
    quotas = sorted({str(each) for some in visit.site.settings.quotas_of.values() for each in some})
    found = error = None
    try:
        found = visit.dispatcher.refusals(
            since=timedelta(hours=int(since)),
            quota=given.get("quota"),
            what_if=given.get("what_if"),
            last=_LAST,
        )
    except (InvalidValue, ReservationsUnavailable) as refused:
        error = visit.error_text(refused)
    return visit.show("refusals.html", found=found, error=error, since=since, lengths=_SINCE,
                      quotas=quotas)  # fmt: skip


PAGES = (
    Page(path="/load", answer=load),
    Page(path="/refusals", answer=refusals, rights=(Right.OPERATE,)),
)
