"""For operators: how the deployment stands, the load, the busiest, refusals, opt-outs, pauses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple, cast, get_args

from starlette.responses import Response

from dispatcher import ChannelLoad, LoadedMinute, LoadToCome, ScopeQuotas
from dispatcher.errors import InvalidDraft, InvalidValue, ReservationsUnavailable, StoreUnavailable
from dispatcher.message import STATUSES, check_text
from dispatcher.operations.overview import By
from dispatcher.problems import status_of
from dispatcher.scope import WITHOUT
from dispatcher.store.listing import Of
from dispatcher.store.schema import PAUSED_CAMPAIGN, PAUSED_CHANNEL, PAUSED_RECIPIENT
from dispatcher.web.access import Right
from dispatcher.web.pages.site import PageRoute, Visit
from dispatcher.web.problems import Refused

WIDTH, LOAD_HEIGHT, BARS = 960, 96, 96
_MOST_MINUTES, _MOST_RANKED, _MOST_REFUSALS, _MOST_ROWS = 60, 20, 20, 200
"""Minutes of a load, entries of a ranking, refusals, opt-outs or pauses that are listed."""


def overview(visit: Visit) -> Response:
    overview = hours = None
    if not visit.caller.is_bound:
        overview = visit.cached("overview", partial(visit.dispatcher.status, since=LOADS["day"]))
        # The page is worth more than this picture.
        with contextlib.suppress(StoreUnavailable, Refused):
            hours = visit.cached("last day", visit.parts.overviews.figures.last_day)
    most = max(overview.load.minutes, default=0) if overview is not None else 0
    return visit.show("overview.html", overview=overview, statuses=STATUSES, most=most, hours=hours)


def doctor(visit: Visit) -> Response:
    return visit.show("doctor.html", examination=None)


def examine(visit: Visit) -> Response:
    visit.note("doctor")
    return visit.show("doctor.html", examination=visit.parts.doctor().examine())


LOADS = {"day": timedelta(days=1), "week": timedelta(days=7)}
"""How far the load to come is shown, by name."""
RANKED = {"hour": timedelta(hours=1), **LOADS}
"""How far what is due is ranked, by name."""
_SINCE = {"1": "hour", "24": "day", "168": "week"}
_LONGEST_REASON = 200


def load(visit: Visit) -> Response:
    within = visit.query.one_of(LOADS, "within", "day")
    load, by_channel = visit.cached(("load", within), partial(_draw_charts, visit, within))
    # A channel that has left the settings may still have messages.
    only = visit.query.one_of(dict.fromkeys([*visit.channels, *by_channel]), "channel", "")
    shown = [chart for name, chart in by_channel.items() if only in ("", name)]
    step = (load.end - load.start) / BARS
    return visit.show("load.html", load=load, shown=shown, within=within, lengths=LOADS,
                      step=step, width=WIDTH, height=LOAD_HEIGHT)  # fmt: skip


def _draw_charts(visit: Visit, within: str) -> tuple[LoadToCome, Mapping[str, ChannelChart]]:
    load = visit.dispatcher.load(within=LOADS[within])
    return load, {channel.channel: chart_of(channel, load) for channel in load.channels}


def top(visit: Visit) -> Response:
    of = cast("Of", visit.query.one_of(get_args(Of), "of", "scope"))
    by = cast("By", visit.query.one_of(get_args(By), "by", "messages"))
    within = visit.query.one_of(RANKED, "within", "day")
    rank = partial(visit.dispatcher.top, of, by=by, within=RANKED[within], limit=_MOST_RANKED)
    ranking = visit.cached(("top", of, by, within), rank)
    return visit.show("top.html", ranking=ranking, by=by, within=within, lengths=RANKED,
                      kinds=get_args(Of))  # fmt: skip


def refusals(visit: Visit) -> Response:
    query = visit.query
    since = query.one_of(_SINCE, "since", "24")
    quotas = {
        str(quota)
        for kind, of_kind in visit.site.settings.quotas_of.items()
        if kind.partition(".")[0] != WITHOUT
        for quota in of_kind
    }
    refusals, error, status = None, None, 200
    try:
        length = timedelta(hours=int(since))
        refusals = visit.dispatcher.refusals(
            since=length, quota=query.get("quota"), last=_MOST_REFUSALS
        )
    except (InvalidValue, ReservationsUnavailable) as refused:
        error, status = visit.error_text(refused), status_of(refused)
    return visit.show("refusals.html", status, refusals=refusals, error=error, since=since,
                      lengths=_SINCE, quotas=sorted(quotas))  # fmt: skip


def suppressions(visit: Visit) -> Response:
    recipient = visit.query.get("recipient")
    opt_outs = list(islice(visit.dispatcher.suppressed(recipient), _MOST_ROWS))
    return visit.show("suppressions.html", opt_outs=opt_outs, recipient=recipient, most=_MOST_ROWS)


def suppress(visit: Visit) -> Response:
    recipient, channel = _recipient_and_channel(visit)
    cancelled = visit.dispatcher.suppress(recipient, channel=channel)
    _note_recipient(visit, "suppress", recipient, channel)
    return visit.go("/suppressions", recipient=recipient, done="suppress", many=cancelled)


def unsuppress(visit: Visit) -> Response:
    recipient, channel = _recipient_and_channel(visit)
    visit.dispatcher.unsuppress(recipient, channel=channel)
    _note_recipient(visit, "unsuppress", recipient, channel)
    return visit.go("/suppressions", done="unsuppress")


def erase(visit: Visit) -> Response:
    recipient, _ = _recipient_and_channel(visit)
    if "sure" not in visit.form:
        raise InvalidDraft("sure", "not ticked", "the tick: an erasure cannot be undone")
    erased = visit.dispatcher.erase(recipient, keep_opt_out="keep_opt_out" in visit.form)
    _note_recipient(visit, "erase", recipient, None)
    done = "erase_partly" if erased.under_way else "erase"
    return visit.go("/suppressions", done=done, many=erased.blanked)


def _recipient_and_channel(visit: Visit) -> tuple[str, str | None]:
    return visit.form.required("recipient", "a recipient"), visit.form.get("channel")


def _note_recipient(visit: Visit, verb: str, recipient: str, channel: str | None) -> None:
    digest = visit.site.digest
    named = "a recipient" if digest is None else f"recipient {digest(recipient)}"
    visit.note(f"{verb} of {named} on {channel or 'every channel'}")


def pauses(visit: Visit) -> Response:
    in_force = visit.dispatcher.pauses()
    kinds = (PAUSED_CHANNEL, PAUSED_RECIPIENT, PAUSED_CAMPAIGN, *visit.site.settings.scopes)
    return visit.show("pauses.html", pauses=in_force[:_MOST_ROWS], count=len(in_force), kinds=kinds,
                      longest=_LONGEST_REASON)  # fmt: skip


def pause(visit: Visit) -> Response:
    return _change(visit, "pause", visit.dispatcher.pause)


def resume(visit: Visit) -> Response:
    return _change(visit, "resume", visit.dispatcher.resume)


def quotas(visit: Visit) -> Response:
    listed = [
        (scope, what, getattr(scope, what))
        for scope in visit.dispatcher.scope_settings()
        for what, is_own in (("quotas", scope.own), ("limits", scope.limits))
        if is_own
    ]
    kinds = visit.site.settings.kinds_with_quotas
    return visit.show("quotas.html", listed=listed[:_MOST_ROWS], count=len(listed), kinds=kinds,
                      longest=_LONGEST_REASON)  # fmt: skip


def set_quotas(visit: Visit) -> Response:
    texts, what = visit.form.required("quotas", "one on each line").splitlines(), _what(visit)

    def change(kind: str, name: str) -> object:
        put = visit.dispatcher.set_limits if what == "limits" else visit.dispatcher.set_quotas
        return put(kind, name, [*filter(str.strip, texts)])

    return _change(visit, f"set_{what}", change, to="/quotas")


def unset_quotas(visit: Visit) -> Response:
    dispatcher, what = visit.dispatcher, _what(visit)
    end = dispatcher.unset_limits if what == "limits" else dispatcher.unset_quotas
    return _change(visit, f"unset_{what}", end, to="/quotas")


def _what(visit: Visit) -> str:
    return "limits" if visit.form.get("what") == "limits" else "quotas"


def _change(
    visit: Visit, verb: str, change: Callable[[str, str], object], to: str = "/pauses"
) -> Response:
    form, digest = visit.form, visit.site.digest
    kind, name = form.required("kind", "a kind"), form.required("name", "a name").strip()
    reason = form.required("reason", "a line of text")
    reason = check_text("reason", reason, longest=_LONGEST_REASON)
    changed = change(kind, name)
    if kind not in (PAUSED_CHANNEL, PAUSED_CAMPAIGN):
        name = "" if digest is None else digest(name)
    visit.note(f"{verb} of {kind} {name}".rstrip() + f" ({reason})")
    over = changed.over if isinstance(changed, ScopeQuotas) and "quotas" in verb else 0
    return visit.go(to, done=verb, many=over or None)


class Bar(NamedTuple):
    at: datetime
    due: int
    overbooked: bool


class ChannelChart(NamedTuple):
    """The load of a channel as bars; ``minutes`` are the fullest ones."""

    load: ChannelLoad
    due: int
    overbooked: int
    bars: Sequence[Bar]
    minutes: Sequence[LoadedMinute]


def chart_of(channel: ChannelLoad, load: LoadToCome) -> ChannelChart:
    step, minutes = (load.end - load.start) / BARS, channel.minutes
    due = summed({minute.at: minute.due for minute in minutes}, load.start, step, BARS)
    over = [minute.at for minute in minutes if minute.overbooked]
    marked = {(at - load.start) // step for at in over}
    bars = [Bar(load.start + n * step, due[n], n in marked) for n in range(BARS)]
    fullest = nsmallest(
        _MOST_MINUTES, minutes, key=lambda minute: (not minute.overbooked, -minute.due)
    )
    fullest.sort(key=lambda minute: minute.at)
    return ChannelChart(channel, sum(due), len(over), bars, fullest)


def summed(
    counted: Mapping[datetime, int], first: datetime, step: timedelta, count: int
) -> list[int]:
    sums = [0] * count
    for at, number in counted.items():
        sums[(at - first) // step] += number
    return sums


_OPT_OUT = ("recipient", "channel")
_SUPPRESS = (Right.RECIPIENTS_READ, Right.SUPPRESSIONS_WRITE)
_PAUSE = ("kind", "name", "reason")
_OPERATE = (Right.MESSAGES_READ, Right.OPERATE)
_route = partial(PageRoute, is_unbound=True)
FIRST = (PageRoute("/", overview, title="Overview"),)
PAGES = (
    _route("/load", load, title="Load", names=("within", "channel")),
    _route("/top", top, title="Top", names=("of", "by", "within"),
           rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
    _route("/refusals", refusals, title="Refusals", names=("since", "quota"),
           rights=(Right.OPERATE,)),
    _route("/suppressions", suppressions, title="Suppressions", names=("recipient",),
           rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
    _route("/suppressions", suppress, "POST", names=_OPT_OUT, rights=_SUPPRESS),
    _route("/suppressions/revoke", unsuppress, "POST", names=_OPT_OUT, rights=_SUPPRESS),
    _route("/suppressions/erase", erase, "POST", names=("recipient", "keep_opt_out", "sure"),
           rights=(Right.OPERATE,)),
    _route("/pauses", pauses, title="Pauses", rights=_OPERATE),
    _route("/pauses", pause, "POST", names=_PAUSE, rights=_OPERATE),
    _route("/pauses/end", resume, "POST", names=_PAUSE, rights=_OPERATE),
    _route("/quotas", quotas, title="Quotas", rights=_OPERATE),
    _route("/quotas", set_quotas, "POST", names=(*_PAUSE, "what", "quotas"), rights=_OPERATE),
    _route("/quotas/end", unset_quotas, "POST", names=(*_PAUSE, "what"), rights=_OPERATE),
    _route("/doctor", doctor, title="Doctor", rights=(Right.OPERATE,)),
    _route("/doctor", examine, "POST", rights=(Right.OPERATE,)),
)  # fmt: skip
