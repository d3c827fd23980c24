"""Pauses: what is not sent until it is resumed; begun and ended for a reason."""

from __future__ import annotations

from starlette.responses import Response

from dispatcher.errors import InvalidValue
from dispatcher.message import check_text
from dispatcher.store import PAUSED_CAMPAIGN, PAUSED_CHANNEL, PAUSED_RECIPIENT
from dispatcher.web.access import Right
from dispatcher.web.pages.site import PageRoute, Visit

_MOST = 200
_LONGEST_REASON = 200


def pauses(visit: Visit) -> Response:
    visit.caller.check_unbound()
    found = visit.parts.pause_list.in_force()
    kinds = (PAUSED_CHANNEL, PAUSED_RECIPIENT, PAUSED_CAMPAIGN, *visit.site.settings.scopes)
    return visit.show("pauses.html", found=found[:_MOST], many=len(found), kinds=kinds,
                      longest=_LONGEST_REASON)  # fmt: skip


def pause(visit: Visit) -> Response:
    kind, name, reason = _asked(visit)
    visit.dispatcher.pause(kind, name)
    _note(visit, "pause", kind, name, reason)
    return visit.go("/pauses", done="pause")


def resume(visit: Visit) -> Response:
    kind, name, reason = _asked(visit)
    visit.dispatcher.resume(kind, name)
    _note(visit, "resume", kind, name, reason)
    return visit.go("/pauses", done="resume")


def _asked(visit: Visit) -> tuple[str, str, str]:
    visit.caller.check_unbound()
    for field, accepted in (("kind", "a kind"), ("name", "a name"), ("reason", "a line of text")):
        if field not in visit.form:
            raise InvalidValue(field, "not given", accepted)
    reason = check_text("reason", visit.form["reason"], longest=_LONGEST_REASON)
    return visit.form["kind"], visit.form["name"].strip(), reason


def _note(visit: Visit, verb: str, kind: str, name: str, reason: str) -> None:
    """Log what was done, and why: names of recipients and scopes as digests."""
    digest = visit.site.digest
    if kind not in (PAUSED_CHANNEL, PAUSED_CAMPAIGN):
        name = "" if digest is None else digest(name)
    visit.note(f"{verb} of {kind} {name}".rstrip() + f" ({reason})")


_RIGHTS = (Right.MESSAGES_READ, Right.OPERATE)
_FORM = ("kind", "name", "reason")
PAGES = (
    PageRoute(path="/pauses", answer=pauses, rights=_RIGHTS),
    PageRoute(path="/pauses", answer=pause, method="POST", names=_FORM, rights=_RIGHTS),
    PageRoute(path="/pauses/end", answer=resume, method="POST", names=_FORM, rights=_RIGHTS),
)
