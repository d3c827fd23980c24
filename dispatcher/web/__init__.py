"""The HTTP API and the page: ASGI applications over a dispatcher. Extra ``web``.

::

    from dispatcher import Dispatcher
    from dispatcher.web import Loopback, api, page

    app.mount("/messages", api(Dispatcher()))
    app.mount("/dispatcher", page(Dispatcher(), access=Loopback()))

``api`` is the application and the list of its paths, ``calls`` their functions, ``context`` what
these get. ``access`` turns keys into callers with rights, ``admission`` counts their calls,
``replies`` answers repeated calls as the first one was answered, ``problems`` refuses calls that
the dispatcher does not see, ``streams`` bounds long answers, and ``models`` are the bodies. The
page is in ``pages``.
"""

from dispatcher.extras import needs

with needs("web", "web"):
    from dispatcher.web.access import Auth, Caller, Right
    from dispatcher.web.api import api
    from dispatcher.web.pages import Access, Loopback, page
    from dispatcher.web.serving import page_and_api

__all__ = ["Access", "Auth", "Caller", "Loopback", "Right", "api", "page", "page_and_api"]
