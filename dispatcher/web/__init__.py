"""The HTTP API and the page: ASGI applications over a dispatcher. Extra ``web``.

::

    from dispatcher.web import Loopback, api, page

    app.mount("/dispatcher/api", api(dispatcher))
    app.mount("/dispatcher", page(dispatcher, access=Loopback()))

``api`` lists the paths of the API, ``calls`` has their functions, which get a ``context`` and
``models`` of bodies. ``keys`` turns keys into callers, ``access`` says what these may do, and
``bounds`` how many are under way.
"""

from dispatcher.errors import needs

with needs("web", "web"):
    from dispatcher.web.access import Auth, Caller, Right
    from dispatcher.web.api import api
    from dispatcher.web.pages import Access, Loopback, page, page_and_api

__all__ = ["Access", "Auth", "Caller", "Loopback", "Right", "api", "page", "page_and_api"]
