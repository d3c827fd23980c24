"""Callers and their rights, and how often each may call."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING

from dispatcher import Wanted
from dispatcher.app import App
from dispatcher.errors import LimitersUnavailable, MessageNotFound, quoted
from dispatcher.limiters import Limiter, parse
from dispatcher.message import Draft, Message, check_text
from dispatcher.problems import limit_headers
from dispatcher.scope import is_recipient_kind
from dispatcher.selection import id_of
from dispatcher.store.schema import PAUSED_RECIPIENT, Movable
from dispatcher.web.problems import Refused, forbidden

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger(__name__)

RATE = "100/second"
"""The limit of a caller that has none of its own."""
_WARN_SECONDS = 60.0
_LONGEST_KEY = 190
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


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
        return kind.partition(".")[0] != PAUSED_RECIPIENT or Right.RECIPIENTS_READ in self.rights

    def check_channel(self, channel: object) -> None:
        if self.channels is not None and channel not in self.channels:
            raise forbidden(f"the key may only use the channels {', '.join(sorted(self.channels))}")

    def own(self, draft: Draft) -> Draft:
        self.check_channel(draft.channel)
        if draft.event is not None and self.is_bound:  # it would read and set events of others
            raise forbidden("events need a key without bound channels or scope")
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
        """Return the caller's key as given; another one's only to a caller that sees addresses."""
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


class Admission:
    def __init__(self, parts: App, *, auth: Auth, rate: str) -> None:
        self.caller_of = auth
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


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
