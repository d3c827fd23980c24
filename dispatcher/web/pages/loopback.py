"""Access from this machine alone, without a key."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from dispatcher.web.access import READ_ONLY, Caller, Right

if TYPE_CHECKING:
    from starlette.requests import Request

_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Loopback:
    """Lets in callers on this machine that use a name of this machine, and no others.

    The name is checked because a site may let its own name mean 127.0.0.1 (DNS rebinding). A call
    that a proxy passes on comes from elsewhere: it is known by its headers, or by HTTP/1.0. Behind
    a proxy on this machine that shows neither, give a function of your own. Other users of the
    machine are let in, too.
    """

    def __init__(self, *, name: str = "local", rights: Iterable[Right] = READ_ONLY) -> None:
        self._caller = Caller(name=name, rights=frozenset(rights))

    def __call__(self, request: Request) -> Caller | None:
        address = request.client.host if request.client is not None else ""
        named = request.url.hostname or ""
        is_passed_on = request.scope.get("http_version") == "1.0" or any(
            each in request.headers for each in _OF_PROXIES
        )
        return self._caller if _is_here(address) and _is_here(named) and not is_passed_on else None


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
