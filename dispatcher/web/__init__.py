"""The HTTP API and the page: ASGI applications over a dispatcher. Extra ``web``.

::

    from dispatcher.web import Loopback, api, page

    app.mount("/dispatcher/api", api(dispatcher))
    app.mount("/dispatcher", page(dispatcher, access=Loopback()))

``api`` is the application, ``endpoints`` the list of its paths, ``calls`` their functions, which
run in ``threads``, ``context`` what these get. ``access`` turns keys into callers with rights,
``admission`` counts their calls, ``answers`` are those as JSON, and the versions of messages,
``problems`` refuses calls that the dispatcher does not see, ``streams`` bounds long answers,
``models`` are the bodies, and ``openapi`` makes the document. The page is in ``pages``; ``serving``
serves both.
"""

from dispatcher.extras import needs

with needs("web", "web"):
    from dispatcher.web.access import Auth, Caller, Right
    from dispatcher.web.api import api
    from dispatcher.web.pages import Access, Loopback, page
    from dispatcher.web.serving import page_and_api

__all__ = ["Access", "Auth", "Caller", "Loopback", "Right", "api", "page", "page_and_api"]
