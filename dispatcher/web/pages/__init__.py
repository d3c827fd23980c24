"""The page: what is booked and what will be, for a person with a browser. Extra ``web``.

``site`` has what all pages share: access, the refusal of foreign calls, headers, templates. Each of
the other modules has a subject, and a list ``PAGES`` of its paths. A new subject is a line here.
"""

from __future__ import annotations

from starlette.applications import Starlette

from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue
from dispatcher.web.access import RATE
from dispatcher.web.pages import calendar, campaigns, lists, messages
from dispatcher.web.pages.site import Access, PageRoute, Site
from dispatcher.web.pages.visitors import SIGN_IN, Loopback, SignIn

__all__ = ["Access", "Loopback", "SignIn", "page"]

PAGES = (
    *lists.FIRST,
    *calendar.PAGES,
    *messages.PAGES,
    *campaigns.PAGES,
    *lists.PAGES,
)
"""All pages, in the order of the navigation."""


def page(dispatcher: Dispatcher, *, access: Access | None = None, rate: str = RATE) -> Starlette:
    """Return the page of a dispatcher, an ASGI application to serve or to mount.

    ``access`` takes a request and returns a :class:`~dispatcher.web.Caller` with a name for the log
    and the rights of that person, or None. ``rate`` limits the visits of a caller that has no rate
    of its own. The caller of this function closes the dispatcher.

    Raises InvalidValue without ``access``, and for a rate that cannot be read.
    """
    if access is None:
        accepted = (
            "a function that takes a request and returns a Caller or None; "
            "Loopback() lets this machine read, behind no proxy"
        )
        raise InvalidValue("access", "not given: the page has no default access", accepted)
    pages = list(PAGES)
    if isinstance(access, SignIn):
        pages += [
            PageRoute(SIGN_IN, access.form, is_public=True, names=("to",)),
            PageRoute(SIGN_IN, access.enter, "POST", is_public=True, names=("key", "to")),
            PageRoute("/sign-out", access.leave, "POST", is_public=True),
        ]
    return Site(dispatcher, access, pages, rate=rate).application()
