"""Opt-outs: those of a recipient, or the first ones of all; made and revoked. Erasures."""

from __future__ import annotations

from itertools import islice

from starlette.responses import Response

from dispatcher.errors import InvalidDraft
from dispatcher.web.access import Right
from dispatcher.web.pages.site import PageRoute, Visit

_MOST = 200


def suppressions(visit: Visit) -> Response:
    visit.caller.check_unbound()
    recipient = visit.query.get("recipient")
    found = list(islice(visit.dispatcher.suppressed(recipient), _MOST))
    return visit.show("suppressions.html", found=found, recipient=recipient, most=_MOST)


def suppress(visit: Visit) -> Response:
    recipient, channel = _recipient_and_channel(visit)
    many = visit.dispatcher.suppress(recipient, channel=channel)
    _note(visit, "suppress", recipient, channel)
    return visit.go("/suppressions", recipient=recipient, done="suppress", many=many)


def unsuppress(visit: Visit) -> Response:
    recipient, channel = _recipient_and_channel(visit)
    visit.dispatcher.unsuppress(recipient, channel=channel)
    _note(visit, "unsuppress", recipient, channel)
    return visit.go("/suppressions", done="unsuppress")


def erase(visit: Visit) -> Response:
    recipient, _ = _recipient_and_channel(visit)
    if visit.form.get("sure") is None:
        raise InvalidDraft("sure", "not ticked", "the tick: an erasure cannot be undone")
    keep = visit.form.get("keep_opt_out") is not None
    done = visit.dispatcher.erase(recipient, keep_opt_out=keep)
    _note(visit, "erase", recipient, None)
    return visit.go("/suppressions", done="erase" if not done.under_way else "erase_partly",
                    many=done.blanked)  # fmt: skip


def _recipient_and_channel(visit: Visit) -> tuple[str, str | None]:
    visit.caller.check_unbound()
    recipient = visit.form.get("recipient")
    if recipient is None:
        raise InvalidDraft("recipient", "not given", "a recipient")
    return recipient, visit.form.get("channel")


def _note(visit: Visit, verb: str, recipient: str, channel: str | None) -> None:
    digest = visit.site.digest
    named = "a recipient" if digest is None else f"recipient {digest(recipient)}"
    visit.note(f"{verb} of {named} on {channel or 'every channel'}")


_RIGHTS = (Right.RECIPIENTS_READ, Right.SUPPRESSIONS_WRITE)
_FORM = ("recipient", "channel")
PAGES = (
    PageRoute(path="/suppressions", answer=suppressions, names=("recipient",),
         rights=(Right.MESSAGES_READ, Right.RECIPIENTS_READ)),
    PageRoute(path="/suppressions", answer=suppress, method="POST", names=_FORM, rights=_RIGHTS),
    PageRoute(path="/suppressions/revoke", answer=unsuppress, method="POST", names=_FORM,
         rights=_RIGHTS),
    PageRoute(path="/suppressions/erase", answer=erase, method="POST",
         names=("recipient", "keep_opt_out", "sure"), rights=(Right.OPERATE,)),
)  # fmt: skip
