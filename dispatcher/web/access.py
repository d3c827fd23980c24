"""Keys, callers and their rights, and how often each may call.

A key is ``dsp_<id>_<secret>``: its beginning is found by scanners of leaked secrets, and its secret
has 256 random bits, so that the store keeps only a plain SHA-256 digest of it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from dispatcher import Wanted
from dispatcher.app import App
from dispatcher.errors import InvalidValue, LimitersUnavailable, MessageNotFound, quoted
from dispatcher.limiters import Limiter, parse
from dispatcher.message import Draft, Message, check_text
from dispatcher.problems import limit_headers
from dispatcher.scope import is_recipient_kind
from dispatcher.selection import id_of
from dispatcher.store.api import ApiKey, ApiKeys, Sessions
from dispatcher.store.schema import PAUSED_RECIPIENT, Movable
from dispatcher.times.clock import SystemClock
from dispatcher.web.problems import Refused, forbidden, unauthorized

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.web.pages.site import Visit

log = logging.getLogger(__name__)

RATE = "100/second"
"""The limit of a caller that has none of its own."""
_WARN_SECONDS = 60.0
_PREFIX = "dsp_"
_LONGEST_NAME, _LONGEST_KEY = 63, 190
_ROTATED = ("name", "rights", "channels", "scope", "rate")
_TTL_SECONDS = 2.0


class Right(StrEnum):
    """What a key allows."""

    MESSAGES_READ = "messages:read"
    MESSAGES_WRITE = "messages:write"
    MESSAGES_CANCEL = "messages:cancel"
    BODIES_READ = "bodies:read"
    RECIPIENTS_READ = "recipients:read"
    SUPPRESSIONS_WRITE = "suppressions:write"
    OPERATE = "operate"


READ_ONLY = frozenset({Right.MESSAGES_READ, Right.RECIPIENTS_READ})


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The program that calls, and what it may do.

    Unless ``rights`` are given it may read messages and recipients, no bodies, and change nothing.
    ``channels`` are those that it may use, None for all. With ``scope``, a kind and a name such as
    ``("tenant", "acme")``, it sees and makes only messages that count against that scope. ``rate``
    limits its calls (``"100/second"``), None for the default of the API.
    """

    name: str
    rights: frozenset[Right] = READ_ONLY
    channels: frozenset[str] | None = None
    scope: tuple[str, str] | None = None
    rate: str | None = None

    def check(self, *rights: Right) -> None:
        for right in rights:
            if right not in self.rights:
                raise forbidden(f"the key has no right {right}")

    def check_unbound(self) -> None:
        if self.is_bound:
            raise forbidden("the call needs a key without bound channels or scope")

    def check_scope(self, kind: str, name: str) -> None:
        if self.scope not in (None, (kind, name)) or self.channels is not None:
            raise forbidden("the call goes beyond the channels or the scope of the key")

    def sees(self, message: Message) -> bool:
        if self.channels is not None and message.channel not in self.channels:
            return False
        return self.scope is None or message.scopes.get(self.scope[0]) == self.scope[1]

    def movable(self, parts: App, message_id: str) -> Movable:
        movable = parts.messages.movable(id_of(message_id))
        if not self.sees(movable.message):
            raise MessageNotFound(movable.message.id)
        return movable

    def sees_pause_name(self, kind: str) -> bool:
        return kind != PAUSED_RECIPIENT or Right.RECIPIENTS_READ in self.rights

    def check_channel(self, channel: object) -> None:
        if self.channels is not None and channel not in self.channels:
            raise forbidden(f"the key may only use the channels {', '.join(sorted(self.channels))}")

    def own(self, draft: Draft) -> Draft:
        self.check_channel(draft.channel)
        if self.scope is None:
            return draft
        kind, name = self.scope
        scopes = dict(draft.scopes or {})
        if scopes.setdefault(kind, name) != name:
            raise forbidden(f"the key may only use {kind} {quoted(name)}")
        return replace(draft, scopes=scopes)

    def narrowed(self, filters: Wanted) -> Wanted:
        """Return filters that match the caller's messages alone. Refuses those of others.

        Whether there are messages would tell a recipient.
        """
        scopes = dict(filters.get("scopes") or {})
        if filters.get("recipient") or filters.get("scope") or any(map(is_recipient_kind, scopes)):
            self.check(Right.RECIPIENTS_READ)
        if self.scope is not None:
            kind, name = self.scope
            if scopes.setdefault(kind, name) != name:
                raise forbidden(f"the key may only use {kind} {quoted(name)}")
        channel = filters.get("channel")
        if channel is None and self.channels:
            channel = sorted(self.channels)
        elif self.channels is not None:
            self.check_channel(channel)
        return {**filters, "channel": channel, "scopes": scopes or None}

    def own_key(self, key: str | None, field: str = "idempotency_key") -> str | None:
        """Return an idempotency key as it is stored. Raises InvalidDraft for one that is none."""
        if key is None:
            return None
        return f"{self._key_start}{check_text(field, key, longest=_LONGEST_KEY)}"

    def shown_key(self, stored: str | None) -> str | None:
        """Return a key as the caller gave it; those of others, if it may see addresses."""
        if stored is not None and stored.startswith(self._key_start):
            return stored.removeprefix(self._key_start)
        return stored if self.sees_conflicts else None

    @property
    def sees_conflicts(self) -> bool:
        return Right.RECIPIENTS_READ in self.rights and not self.is_bound

    @property
    def sees_opt_outs(self) -> bool:
        """Whether the caller may know that a recipient has opted out: a submit tells it, too."""
        return Right.MESSAGES_WRITE in self.rights or self.sees_conflicts

    @property
    def is_bound(self) -> bool:
        return self.scope is not None or self.channels is not None

    @property
    def _key_start(self) -> str:
        return f"api-{digest_of(repr((self.name, self.scope)))[:16]}/"


Auth = Callable[["Request"], Caller]
"""Returns who calls. It raises :func:`~dispatcher.web.problems.unauthorized` for a stranger."""


class KeyAuth:
    """Finds callers by ``Authorization: Bearer dsp_…``. A revoked key ends within two seconds."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._callers: dict[str, tuple[float, Caller]] = {}
        """By digests of their keys, each until a time of the monotonic clock."""

    def __call__(self, request: Request) -> Caller:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthorized("send a key as `Authorization: Bearer dsp_…`")
        token = token.strip()
        digest, now = digest_of(token), time.monotonic()
        ends_at, caller = self._callers.get(digest, (now, None))
        if caller is None or ends_at <= now:
            caller = caller_of(self.key(token))
            self._callers[digest] = (now + _TTL_SECONDS, caller)
        return caller

    def key(self, token: str) -> ApiKey:
        prefix, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        stored = self._keys.find(key_id) if f"{prefix}_" == _PREFIX and secret else None
        if stored is None or not hmac.compare_digest(stored[1], digest_of(token)):
            raise unauthorized("the key is not known")
        key = stored[0]
        if not key.is_valid:
            raise unauthorized("the key is revoked" if key.revoked_at else "the key has expired")
        self._keys.note_use(key.id)
        return key


def caller_of(key: ApiKey) -> Caller:
    return Caller(
        name=key.name,
        rights=frozenset(map(Right, key.rights)),
        channels=None if key.channels is None else frozenset(key.channels),
        scope=key.scope,
        rate=key.rate,
    )


class Admission:
    def __init__(self, parts: App, *, auth: Auth | None, rate: str) -> None:
        self.caller_of = auth or KeyAuth(parts.api_keys)
        self._redis = parts.plain_redis
        self._prefix = f"{parts.settings.namespace}.api"
        self._rate = rate
        self._limits: dict[str, Limiter] = {}
        self._clock = parts.clock
        self._warns_at = 0.0
        parse(rate)

    def admit(self, request: Request) -> Caller:
        """Find the caller, count the call, refuse it where none is left; goes on without Redis."""
        caller = request.state.caller = self.caller_of(request)
        rate = caller.rate or self._rate
        limiter = self._limits.get(rate)
        if limiter is None:
            limiter = self._limits[rate] = parse(rate).on(self._redis, prefix=self._prefix)
        try:
            decision = limiter.acquire(caller.name)
        except LimitersUnavailable as error:
            now = self._clock.monotonic()
            if now >= self._warns_at:
                self._warns_at = now + _WARN_SECONDS
                log.warning("calls are not limited while Redis does not answer: %s", error)
            return caller
        request.state.headers = limit_headers(limiter.limits, decision, name="key")
        if not decision:
            wait = max(1, -(-decision.retry_after // timedelta(seconds=1)))
            detail = f"{quoted(caller.name)} may call {rate}; try again in {wait} s"
            raise Refused(429, "limit-reached", detail, headers={"Retry-After": str(wait)})
        return caller


def add_key(
    keys: ApiKeys,
    name: str,
    *,
    rights: Iterable[str] = tuple(Right),
    channels: Iterable[str] | None = None,
    scope: tuple[str, str] | None = None,
    rate: str | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key; return it and its secret. Raises InvalidValue where the name has a valid one."""
    check_text("name", name, longest=_LONGEST_NAME)
    before = keys.named(name)
    if any(key.is_valid for key in before):
        raise InvalidValue("name", f"{quoted(name)} has a key", "another name, or rotate that key")
    known = tuple(map(str, Right))
    for right in rights:
        if right not in known:
            raise InvalidValue("rights", f"there is no right {quoted(right)}", ", ".join(known))
    if rate is not None:
        parse(rate)
    return _stored(
        keys,
        before,
        name=name,
        rights=sorted(set(rights)),
        channels=None if channels is None else sorted(set(channels)),
        scope=scope,
        rate=rate,
        expires_at=expires_at,
    )


def rotate_key(keys: ApiKeys, name: str, *, overlap: timedelta) -> tuple[ApiKey, str]:
    """Make a second key of that name, and let the first one end after ``overlap``.

    Both are the same caller, so that a call that is repeated with the new one is known.
    """
    known = keys.named(name)
    valid = [key for key in known if key.is_valid]
    if len(valid) != 1:
        problem = "has no valid key" if not valid else "has two valid keys already"
        accepted = "a name with one; `keys revoke` ends one of two"
        raise InvalidValue("name", f"{quoted(name)} {problem}", accepted)
    [before] = valid
    same = {field: getattr(before, field) for field in _ROTATED}
    expires_at = before.expires_at
    if expires_at is not None:
        expires_at = SystemClock().now() + (expires_at - before.created_at)
    made = _stored(keys, known, **same, expires_at=expires_at)
    keys.expire(before.id, within=overlap)
    return made


def revoke_key(keys: ApiKeys, name_or_id: str) -> list[ApiKey]:
    meant = [key for key in keys.named() if name_or_id in (key.name, key.id)]
    if not meant:
        accepted = "the name or the id of a key, as `dispatcher keys list` shows it"
        raise InvalidValue("name", f"there is no key {quoted(name_or_id)}", accepted)
    keys.revoke([key.id for key in meant])
    return [key for key in keys.named() if name_or_id in (key.name, key.id)]


def _stored(keys: ApiKeys, before: Sequence[ApiKey], **fields: Any) -> tuple[ApiKey, str]:
    """Store a key that follows the one that no other follows: the database's clock may go back."""
    key_id = secrets.token_hex(6)
    token = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    followed = {key.follows for key in before}
    follows = next((last.id for last in before if last.id not in followed), "")
    stored = keys.add(key_id, digest_of(token), **fields, follows=follows)
    if stored is None:
        problem = f"another call has just made a key {quoted(fields['name'])}"
        raise InvalidValue("name", problem, "another name, or rotate that key")
    return stored, token


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


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
            header in request.headers for header in _OF_PROXIES
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
    after 12 hours. No script reads the cookie, and no other site makes a browser send it. Signing
    in again begins a new session and ends the last one.
    """

    def __init__(self, keys: ApiKeys, sessions: Sessions) -> None:
        self._auth = KeyAuth(keys)
        self._sessions = sessions

    def __call__(self, request: Request) -> Caller:
        secret = request.cookies.get(_COOKIE)
        if not secret:
            raise unauthorized("sign in")
        key = self._sessions.key_of(digest_of(secret))
        if key is None:
            raise unauthorized("the session has ended")
        return caller_of(key)

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

    def _end(self, visit: Visit) -> None:
        secret = visit.request.cookies.get(_COOKIE)
        if secret:
            self._sessions.end(digest_of(secret))


def _inside(to: str) -> str:
    is_path = to.startswith("/") and not to.startswith(("//", "/\\"))
    return to if is_path and to.isprintable() else "/"
