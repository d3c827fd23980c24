"""The first page: how a deployment stands, with live numbers; and the doctor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial

from starlette.responses import Response

from dispatcher.errors import DispatcherError, StoreUnavailable
from dispatcher.message import Status
from dispatcher.operations.overview import Overview
from dispatcher.web.access import Right
from dispatcher.web.bounds import NumbersResponse
from dispatcher.web.pages.figures import SECONDS
from dispatcher.web.pages.site import PageRoute, Visit
from dispatcher.web.pages.times import local_text
from dispatcher.web.problems import Refused

_SINCE = timedelta(days=1)
STATUSES = (Status.SCHEDULED, Status.SENDING, Status.HELD, Status.SENT, Status.FAILED,
            Status.EXPIRED, Status.CANCELLED)  # fmt: skip


def overview(visit: Visit) -> Response:
    found = None if visit.caller.is_bound else _read(visit)
    hours = None
    if found is not None:
        with suppress(StoreUnavailable, Refused):  # the page is worth more than this picture
            hours = visit.cached("last day", visit.parts.overviews.figures.last_day)
    most = max(found.load.minutes, default=0) if found is not None else 0
    return visit.show("overview.html", found=found, statuses=STATUSES, most=most, hours=hours,
                      numbers=None if found is None else _numbers_of(visit, found))  # fmt: skip


def _read(visit: Visit) -> Overview:
    return visit.cached("overview", partial(visit.dispatcher.status, since=_SINCE))


def live(visit: Visit) -> Response:
    return NumbersResponse(_numbers(visit), visit.site.streams, visit.caller.name)


async def _numbers(visit: Visit) -> AsyncIterator[str]:
    site = visit.site
    while True:
        try:
            await site.threads.run(site.enter, visit.request, LIVE)
            found = await site.threads.run(_read, visit)
            yield f"event: numbers\ndata: {json.dumps(_numbers_of(visit, found))}\n\n"
        except Refused:
            return
        except DispatcherError:
            yield ": the database does not answer\n\n"
        await asyncio.sleep(SECONDS)


def _numbers_of(visit: Visit, found: Overview) -> Mapping[str, str]:
    late, zone = found.overdue, visit.site.settings.zone
    numbers = {f"all.{each}": f"{found.total(each):,}" for each in STATUSES}
    for channel, counts in found.counts.by_channel.items():
        numbers |= {f"{channel}.{each}": f"{counts.get(each, 0):,}" for each in STATUSES}
    alive = {name: sum(each.is_alive for each in signs or ())
             for name, signs in (("workers", found.workers), ("beats", found.beats))}  # fmt: skip
    return numbers | {
        "overdue": f"{late.many:,}",
        "due": f"{sum(found.load.minutes):,}",
        "now": f"{local_text(found.now, zone, '%H:%M:%S')} {zone}",
        **{name: "–" if found.silence else f"{many:,}" for name, many in alive.items()},
    }


def doctor(visit: Visit) -> Response:
    return visit.show("doctor.html", examination=None)


def examine(visit: Visit) -> Response:
    visit.note("doctor")
    return visit.show("doctor.html", examination=visit.parts.doctor().examine())


LIVE = PageRoute("/live", live, is_unbound=True)
PAGES = (PageRoute("/", overview, title="Overview"), LIVE)
DOCTOR = (
    PageRoute("/doctor", doctor, title="Doctor", rights=(Right.OPERATE,), is_unbound=True),
    PageRoute("/doctor", examine, "POST", rights=(Right.OPERATE,), is_unbound=True),
)
