"""What is not sent: opt-outs and erasures of recipients, and pauses, each for a reason."""

from __future__ import annotations

from functools import partial
from itertools import islice

from starlette.responses import Response

from dispatcher.errors import InvalidDraft, InvalidValue
from dispatcher.message import check_text
from dispatcher.store import PAUSED_CAMPAIGN, PAUSED_CHANNEL, PAUSED_RECIPIENT
from dispatcher.web.access import Right
from dispatcher.web.pages.site import PageRoute, Visit

_MOST = 200
"""How many opt-outs or pauses are listed."""
_LONGEST_REASON = 200


def suppressions(visit: Visit) -> Response:
    recipient = visit.query.get("recipient")
    found = list(islice(visit.dispatcher.suppressed(recipient), _MOST))
    return visit.show("suppressions.html", found=found, recipient=recipient, most=_MOST)


def suppress(visit: Visit) -> Response:
    recipient, channel = _recipient_and_channel(visit)
    many = visit.dispatcher.suppress(recipient, channel=channel)
    _note_recipient(visit, "suppress", recipient, channel)
    return visit.go("/suppressions", recipient=recipient, done="suppress", many=many)


def unsuppress(visit: Visit) -> Response:
    recipient, channel = _recipient_and_channel(visit)
    visit.dispatcher.unsuppress(recipient, channel=channel)
    _note_recipient(visit, "unsuppress", recipient, channel)
    return visit.go("/suppressions", done="unsuppress")


def erase(visit: Visit) -> Response:
    recipient, _ = _recipient_and_channel(visit)
    if visit.form.get("sure") is None:
        raise InvalidDraft("sure", "not ticked", "the tick: an erasure cannot be undone")
    keep = visit.form.get("keep_opt_out") is not None
    erased = visit.dispatcher.erase(recipient, keep_opt_out=keep)
    _note_recipient(visit, "erase", recipient, None)
    done = "erase_partly" if erased.under_way else "erase"
    return visit.go("/suppressions", done=done, many=erased.blanked)


def _recipient_and_channel(visit: Visit) -> tuple[str, str | None]:
    recipient = visit.form.get("recipient")
    if recipient is None:
        raise InvalidDraft("recipient", "not given", "a recipient")
    return recipient, visit.form.get("channel")


def _note_recipient(visit: Visit, verb: str, recipient: str, channel: str | None) -> None:
    digest = visit.site.digest
    named = "a recipient" if digest is None else f"recipient {digest(recipient)}"
    visit.note(f"{verb} of {named} on {channel or 'every channel'}")


def pauses(visit: Visit) -> Response:
    found = visit.parts.pause_list.in_force()
    kinds = (PAUSED_CHANNEL, PAUSED_RECIPIENT, PAUSED_CAMPAIGN, *visit.site.settings.scopes)
    return visit.show("pauses.html", found=found[:_MOST], many=len(found), kinds=kinds,
                      longest=_LONGEST_REASON)  # fmt: skip


def pause(visit: Visit) -> Response:
    kind, name, reason = _asked(visit)
    visit.dispatcher.pause(kind, name)
    return _done(visit, "pause", kind, name, reason)


def resume(visit: Visit) -> Response:
    kind, name, reason = _asked(visit)
    visit.dispatcher.resume(kind, name)
    return _done(visit, "resume", kind, name, reason)


def _asked(visit: Visit) -> tuple[str, str, str]:
    for field, accepted in (("kind", "a kind"), ("name", "a name"), ("reason", "a line of text")):
        if field not in visit.form:
            raise InvalidValue(field, "not given", accepted)
    reason = check_text("reason", visit.form["reason"], longest=_LONGEST_REASON)
    return visit.form["kind"], visit.form["name"].strip(), reason


def _done(visit: Visit, verb: str, kind: str, name: str, reason: str) -> Response:
    """Log what was done, and why: names of recipients and scopes as digests."""
    digest = visit.site.digest
    if kind not in (PAUSED_CHANNEL, PAUSED_CAMPAIGN):
        name = "" if digest is None else digest(name)
    visit.note(f"{verb} of {kind} {name}".rstrip() + f" ({reason})")
    return visit.go("/pauses", done=verb)


_OPT_OUT = ("recipient", "channel")
_SUPPRESS = (Right.RECIPIENTS_READ, Right.SUPPRESSIONS_WRITE)
_PAUSE = ("kind", "name", "reason")
_OPERATE = (Right.MESSAGES_READ, Right.OPERATE)
_route = partial(PageRoute, is_unbound=True)
PAGES = (
    _route("/suppressions", suppressions, title="Suppressions", names=("recipient",),
           rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
    _route("/suppressions", suppress, "POST", names=_OPT_OUT, rights=_SUPPRESS),
    _route("/suppressions/revoke", unsuppress, "POST", names=_OPT_OUT, rights=_SUPPRESS),
    _route("/suppressions/erase", erase, "POST", names=("recipient", "keep_opt_out", "sure"),
           rights=(Right.OPERATE,)),
    _route("/pauses", pauses, title="Pauses", rights=_OPERATE),
    _route("/pauses", pause, "POST", names=_PAUSE, rights=_OPERATE),
    _route("/pauses/end", resume, "POST", names=_PAUSE, rights=_OPERATE),
)  # fmt: skip
