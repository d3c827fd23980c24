"""Who visits the page: this machine without a key, or who signs in with a key of the HTTP API."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.responses import Response

from dispatcher.store.api import ApiKeys, Sessions
from dispatcher.web.access import (
    READ_ONLY,
    Caller,
    CallerCache,
    KeyAuth,
    Right,
    caller_of,
    digest_of,
)
from dispatcher.web.problems import Refused, unauthorized

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.web.pages.site import Visit

SIGN_IN = "/sign-in"
_COOKIE = "dispatcher_session"
_LASTS = timedelta(hours=12)
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


class SignIn:
    """Access with a key of ``dispatcher keys``, by which a session begins.

    The browser keeps the secret of the session, 256 random bits, until it closes; the store has a
    digest of it, so that any server knows it. A session ends with its key, with signing out, and
    after 12 hours; other servers notice within two seconds. No script reads the cookie, and no
    other site makes a browser send it. Signing in again begins a new session and ends the last one.
    """

    def __init__(self, keys: ApiKeys, sessions: Sessions) -> None:
        self._auth = KeyAuth(keys)
        self._sessions = sessions
        self._callers = CallerCache()

    def __call__(self, request: Request) -> Caller:
        secret = request.cookies.get(_COOKIE)
        if not secret:
            raise unauthorized("sign in")
        return self._callers.of(digest_of(secret), self._caller)

    def form(self, visit: Visit) -> Response:
        return visit.show("sign_in.html", to=visit.query.get("to", ""), wrong=False)

    def enter(self, visit: Visit) -> Response:
        token, to = visit.form.get("key", "").strip(), visit.form.get("to", "")
        try:
            key = self._auth.key(token)
        except Refused:
            visit.note("sign-in refused")
            return visit.show("sign_in.html", 401, to=to, wrong=True)
        self._end(visit)
        secret = secrets.token_urlsafe(32)
        self._sessions.begin(digest_of(secret), key.id, lasts=_LASTS)
        visit.caller = caller_of(key)
        visit.note("sign-in")
        answer = visit.go(_inside(to))
        answer.set_cookie(
            _COOKIE,
            secret,
            path=visit.root or "/",
            secure=visit.request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    def leave(self, visit: Visit) -> Response:
        self._end(visit)
        answer = visit.go(SIGN_IN)
        answer.delete_cookie(_COOKIE, path=visit.root or "/", httponly=True, samesite="strict")
        return answer

    def _caller(self, session_id: str) -> Caller:
        key = self._sessions.key_of(session_id)
        if key is None:
            raise unauthorized("the session has ended")
        return caller_of(key)

    def _end(self, visit: Visit) -> None:
        secret = visit.request.cookies.get(_COOKIE)
        if secret:
            self._sessions.end(digest_of(secret))
            self._callers.forget(digest_of(secret))


def _inside(to: str) -> str:
    is_path = to.startswith("/") and not to.startswith(("//", "/\\"))
    return to if is_path and to.isprintable() else "/"
