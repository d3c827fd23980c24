"""The page: what is booked and what will be, for a person with a browser. Extra ``web``.

``dispatcher serve`` serves it at ``/``, and the HTTP API at ``/v1``. ``site`` has what all pages
share: access, the refusal of foreign calls, headers, templates. Each of the other modules has a
subject, and a list ``PAGES`` of its paths. A new subject is a line here.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import InvalidValue
from dispatcher.web.access import RATE, Loopback
from dispatcher.web.api import PREFIX, api
from dispatcher.web.keys import SIGN_IN, SignIn
from dispatcher.web.pages import calendar, campaigns, lists, messages
from dispatcher.web.pages.site import Access, PageRoute, Site

__all__ = ["Access", "Loopback", "SignIn", "beside", "page", "page_and_api"]

PAGES = (
    *lists.FIRST,
    *calendar.PAGES,
    *messages.PAGES,
    *campaigns.PAGES,
    *lists.PAGES,
)
"""All pages, in the order of the navigation."""
_HOST, _PORT = "127.0.0.1", 8000
SERVER_OPTIONS: dict[str, Any] = {
    "access_log": False,
    "http": "h11",
    "log_config": None,
    "timeout_graceful_shutdown": 10,
}
"""Options of uvicorn. h11, because with httptools uvicorn does not bound the headers of a call, and
loses the body of one that offers another protocol (decision 0042). No handlers of its own: the log
is that of the process. At the end it waits ten seconds for calls: listeners for events never
end. Closing the dispatcher then waits for the calls that still run.
"""


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


def page_and_api(dispatcher: Dispatcher, *, rate: str = RATE) -> ASGIApp:
    """Return the page and the API as one application. Both take the keys of ``dispatcher keys``."""
    calls = api(dispatcher, rate=rate)
    pages = page(dispatcher, access=SignIn(app_of(dispatcher).database), rate=rate)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_call = path == PREFIX or path.startswith(f"{PREFIX}/") or scope["type"] == "lifespan"
        await (calls if is_call else pages)(scope, receive, send)

    return answer


@contextmanager
def beside(application: ASGIApp) -> Iterator[str]:
    """Serve on this machine from a thread, on port 8000 or any if taken; yield the address."""
    server = uvicorn.Server(uvicorn.Config(application, **SERVER_OPTIONS))
    with _listening() as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://{_HOST}:{port}/"
        finally:
            server.should_exit = True
            thread.join()


def _listening() -> socket.socket:
    try:
        return socket.create_server((_HOST, _PORT))
    except OSError:
        return socket.create_server((_HOST, 0))
