"""What ``dispatcher serve`` serves: the page at ``/``, and the HTTP API at ``/v1``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.client import Dispatcher, app_of
from dispatcher.web.access import RATE
from dispatcher.web.api import api
from dispatcher.web.pages import SignIn, page

_API = "/v1"
_HOST, _PORT = "127.0.0.1", 8000
SERVER_OPTIONS: dict[str, Any] = {
    "access_log": False,
    "http": "h11",
    "log_config": None,
    "timeout_graceful_shutdown": 10,
}
"""Options of uvicorn. h11, because with httptools uvicorn does not bound the headers of a call, and
loses the body of one that offers another protocol (decision 0042). No handlers of its own: the log
is that of the process. At the end it waits ten seconds for calls, because listeners for events and
live numbers never end; closing the dispatcher then waits for the calls that still run.
"""


def page_and_api(dispatcher: Dispatcher, *, rate: str = RATE) -> ASGIApp:
    """Return the page and the API as one application. Both take the keys of ``dispatcher keys``.

    Raises InvalidValue for a rate that cannot be read.
    """
    calls = api(dispatcher, rate=rate)
    parts = app_of(dispatcher)
    pages = page(dispatcher, access=SignIn(parts.api_keys, parts.sessions), rate=rate)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_call = path == _API or path.startswith(f"{_API}/") or scope["type"] == "lifespan"
        await (calls if is_call else pages)(scope, receive, send)

    return answer


@contextmanager
def beside(application: ASGIApp) -> Iterator[str]:
    """Serve an application on this machine, from a thread; yield its address.

    The port is 8000, or any other where that is taken.
    """
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
