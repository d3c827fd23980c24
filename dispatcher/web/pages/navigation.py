"""All pages, and the navigation in its order. A new page is a line in its module's ``PAGES``."""

from __future__ import annotations

from dispatcher.web.access import Right
from dispatcher.web.pages import (
    bulk,
    calendar,
    campaigns,
    figures,
    messages,
    overview,
    pauses,
    suppressions,
)
from dispatcher.web.pages.site import Link

PAGES = (
    *overview.PAGES,
    *calendar.PAGES,
    *figures.PAGES,
    *campaigns.PAGES,
    *bulk.PAGES,  # before those of one message, whose path would match, too
    *messages.PAGES,
    *suppressions.PAGES,
    *pauses.PAGES,
)

LINKS = (
    Link(title="Overview", path="/"),
    Link(title="Calendar", path="/calendar", right=Right.RECIPIENTS_READ),
    Link(title="Messages", path="/messages"),
    Link(title="Held", path="/held"),
    Link(title="Campaigns", path="/campaigns"),
    Link(title="Load", path="/load", unbound=True),
    Link(title="Top", path="/top", right=Right.RECIPIENTS_READ, unbound=True),
    Link(title="Refusals", path="/refusals", right=Right.OPERATE, unbound=True),
    Link(title="Suppressions", path="/suppressions", right=Right.RECIPIENTS_READ, unbound=True),
    Link(title="Pauses", path="/pauses", right=Right.OPERATE, unbound=True),
    Link(title="Doctor", path="/doctor", right=Right.OPERATE, unbound=True),
)
