"""What is to come and what was refused: the load, the busiest, refusals by rule."""

from __future__ import annotations

from datetime import timedelta
from typing import cast, get_args

from starlette.responses import Response

from dispatcher.errors import InvalidValue, ReservationsUnavailable
from dispatcher.operations.overview import By
from dispatcher.problems import status_of
from dispatcher.scope import WITHOUT
from dispatcher.store.listing import Of
from dispatcher.web.access import Right
from dispatcher.web.pages.cached_figures import LOADS, RANKED
from dispatcher.web.pages.charts import BARS, LOAD_HEIGHT, WIDTH
from dispatcher.web.pages.site import PageRoute, Visit

_LAST = 20
_SINCE = {"1": "hour", "24": "day", "168": "week"}


def load(visit: Visit) -> Response:
    within = visit.query.one_of(LOADS, "within", "day")
    charts = visit.site.figures.load(visit.dispatcher, LOADS[within])
    found, by_channel = charts.load, {each.load.channel: each for each in charts.channels}
    # A channel that has left the settings may still have messages.
    only = visit.query.one_of(dict.fromkeys([*visit.channels, *by_channel]), "channel", "")
    shown = [each for name, each in by_channel.items() if only in ("", name)]
    step = (found.end - found.start) / BARS
    return visit.show("load.html", found=found, shown=shown, within=within, lengths=LOADS,
                      step=step, width=WIDTH, height=LOAD_HEIGHT)  # fmt: skip


def top(visit: Visit) -> Response:
    of = cast("Of", visit.query.one_of(get_args(Of), "of", "scope"))
    by = cast("By", visit.query.one_of(get_args(By), "by", "messages"))
    within = visit.query.one_of(RANKED, "within", "day")
    found = visit.site.figures.top(visit.dispatcher, of, by, RANKED[within])
    return visit.show("top.html", found=found, by=by, within=within, lengths=RANKED,
                      kinds=get_args(Of))  # fmt: skip


def refusals(visit: Visit) -> Response:
    given = visit.query
    since = given.one_of(_SINCE, "since", "24")
    settings = visit.site.settings
    quotas = sorted(
        {
            str(quota)
            for kind, of_kind in settings.quotas_of.items()
            if kind != WITHOUT and not kind.startswith(f"{WITHOUT}.")
            for quota in of_kind
        }
    )
    found, error, status = None, None, 200
    try:
        length = timedelta(hours=int(since))
        found = visit.dispatcher.refusals(since=length, quota=given.get("quota"), last=_LAST)
    except (InvalidValue, ReservationsUnavailable) as refused:
        error, status = visit.error_text(refused), status_of(refused)
    return visit.show("refusals.html", status, found=found, error=error, since=since,
                      lengths=_SINCE, quotas=quotas)  # fmt: skip


PAGES = (
    PageRoute("/load", load, title="Load", names=("within", "channel"), is_unbound=True),
    PageRoute("/top", top, title="Top", names=("of", "by", "within"), is_unbound=True,
              rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
    PageRoute("/refusals", refusals, title="Refusals", names=("since", "quota"), is_unbound=True,
              rights=(Right.OPERATE,)),
)  # fmt: skip
