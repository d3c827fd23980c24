"""Keys of the HTTP API and the page, the sessions that begin with them, and their tables.

A key is ``dsp_<id>_<secret>``: its beginning is found by scanners of leaked secrets, and its secret
has 256 random bits, so that the store keeps only a plain SHA-256 digest of it.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Row, and_, delete, or_, select, update
from starlette.responses import Response

from dispatcher.errors import InvalidValue, quoted
from dispatcher.limiters import parse
from dispatcher.message import check_text
from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.times.clock import SystemClock
from dispatcher.web.access import Caller, Right, digest_of
from dispatcher.web.problems import Refused, unauthorized

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.web.pages.site import Visit

_PREFIX = "dsp_"
_LONGEST_NAME = 63
_ROTATED = ("name", "rights", "channels", "scope", "rate")
_SEEN_EVERY = timedelta(minutes=1)
_TTL_SECONDS = 2.0
SIGN_IN = "/sign-in"
_COOKIE = "dispatcher_session"
_LASTS = timedelta(hours=12)


class ApiKey(NamedTuple):
    """One key of the HTTP API, without its secret. Keys of one ``name`` are one caller.

    ``channels`` are those that it may use, None for all; ``scope`` is the only one whose messages
    it may see. ``last_used_at`` is at most a minute old. ``follows``: the key of that name before
    it, "" for the first one. Instants are the database's (aware UTC).
    """

    id: str
    name: str
    rights: tuple[str, ...]
    channels: tuple[str, ...] | None
    scope: tuple[str, str] | None
    rate: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    follows: str
    is_valid: bool

    @property
    def caller(self) -> Caller:
        return Caller(
            name=self.name,
            rights=frozenset(map(Right, self.rights)),
            channels=None if self.channels is None else frozenset(self.channels),
            scope=self.scope,
            rate=self.rate,
        )


class ApiKeys:
    """The keys of the HTTP API, with digests of their secrets. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys = database.tables.api_keys
        row, now = self._keys.c, database_now()
        is_valid = and_(
            row.revoked_at.is_(None), or_(row.expires_at.is_(None), row.expires_at > now)
        )
        self._query = select(self._keys, is_valid.label("is_valid"))

    def add(
        self,
        name: str,
        *,
        rights: Iterable[str] = tuple(Right),
        channels: Iterable[str] | None = None,
        scope: tuple[str, str] | None = None,
        rate: str | None = None,
        expires_at: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; return it and its secret. Raises InvalidValue where the name has one."""
        check_text("name", name, longest=_LONGEST_NAME)
        before = self.named(name)
        if any(key.is_valid for key in before):
            accepted = "another name, or rotate that key"
            raise InvalidValue("name", f"{quoted(name)} has a key", accepted)
        known = tuple(map(str, Right))
        for right in rights:
            if right not in known:
                raise InvalidValue("rights", f"there is no right {quoted(right)}", ", ".join(known))
        if rate is not None:
            parse(rate)
        return self._store(
            before,
            name=name,
            rights=sorted(set(rights)),
            channels=None if channels is None else sorted(set(channels)),
            scope=scope,
            rate=rate,
            expires_at=expires_at,
        )

    def rotate(self, name: str, *, overlap: timedelta) -> tuple[ApiKey, str]:
        """Make a second key of that name, and let the first one end after ``overlap``.

        Both are the same caller, so that a call that is repeated with the new one is known.
        """
        known = self.named(name)
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
        made = self._store(known, **same, expires_at=expires_at)
        row, end = self._keys.c, later(database_now(), overlap)
        ends_later = or_(row.expires_at.is_(None), row.expires_at > end)
        change = update(self._keys).where(row.id == before.id, ends_later)
        self._database.execute(change.values(expires_at=end))
        return made

    def revoke(self, name_or_id: str) -> list[str]:
        """End the keys of that name, or one by its id; return their ids. Raises InvalidValue."""
        ids = [key.id for key in self.named() if name_or_id in (key.name, key.id)]
        if not ids:
            accepted = "the name or the id of a key, as `dispatcher keys list` shows it"
            raise InvalidValue("name", f"there is no key {quoted(name_or_id)}", accepted)
        row = self._keys.c
        change = update(self._keys).where(row.id.in_(ids), row.revoked_at.is_(None))
        self._database.execute(change.values(revoked_at=database_now()))
        return ids

    def named(self, name: str | None = None) -> list[ApiKey]:
        row = self._keys.c
        query = self._query.order_by(row.name, row.created_at, row.id)
        if name is not None:
            query = query.where(row.name == name)
        return list(map(_key, self._database.read(query)))

    def find(self, key_id: str) -> tuple[ApiKey, str] | None:
        """Return a key, and the digest of its secret."""
        for row in self._database.read(self._query.where(self._keys.c.id == key_id)):
            return _key(row), row.secret_digest
        return None

    def of_token(self, token: str) -> ApiKey:
        """Return the valid key that has this secret, and note its use. Raises Refused."""
        prefix, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        stored = self.find(key_id) if f"{prefix}_" == _PREFIX and secret else None
        if stored is None or not hmac.compare_digest(stored[1], digest_of(token)):
            raise unauthorized("the key is not known")
        key, _ = stored
        if not key.is_valid:
            raise unauthorized("the key is revoked" if key.revoked_at else "the key has expired")
        row, now = self._keys.c, database_now()
        is_old = or_(row.last_used_at.is_(None), row.last_used_at < later(now, -_SEEN_EVERY))
        change = update(self._keys).where(row.id == key.id, is_old).values(last_used_at=now)
        self._database.execute(change)
        return key

    def _store(
        self, before: Sequence[ApiKey], *, scope: tuple[str, str] | None, **fields: Any
    ) -> tuple[ApiKey, str]:
        """Store a key that follows the one that no other follows: the clock may go back."""
        key_id = secrets.token_hex(6)
        token = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
        followed = {key.follows for key in before}
        follows = next((last.id for last in before if last.id not in followed), "")
        kind, name = scope or (None, None)
        self._database.add_if_absent(
            self._keys,
            id=key_id,
            secret_digest=digest_of(token),
            scope_kind=kind,
            scope_name=name,
            created_at=database_now(),
            follows=follows,
            **fields,
        )
        stored = self.find(key_id)
        if stored is None:
            problem = f"another call has just made a key {quoted(fields['name'])}"
            raise InvalidValue("name", problem, "another name, or rotate that key")
        return stored[0], token


def _key(row: Row[Any]) -> ApiKey:
    values = {name: getattr(row, name) for name in ApiKey._fields if name != "scope"} | {
        "rights": tuple(row.rights),
        "channels": None if row.channels is None else tuple(row.channels),
        "scope": None if row.scope_kind is None else (row.scope_kind, row.scope_name),
        "is_valid": bool(row.is_valid),
    }
    return ApiKey(**values)


class KeyAuth:
    """Finds callers by ``Authorization: Bearer dsp_…``. A revoked key ends within two seconds."""

    def __init__(self, database: Database) -> None:
        self._keys = ApiKeys(database)
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
            caller = self._keys.of_token(token).caller
            self._callers[digest] = (now + _TTL_SECONDS, caller)
        return caller


class SignIn:
    """Access with a key of ``dispatcher keys``, by which a session begins.

    The browser keeps the secret of the session, 256 random bits, until it closes; the store has a
    digest of it, so that any server knows it. A session ends with its key, with signing out, and
    after 12 hours. No script reads the cookie, and no other site makes a browser send it. Signing
    in again begins a new session and ends the last one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys = ApiKeys(database)
        self._sessions = database.tables.sessions

    def __call__(self, request: Request) -> Caller:
        secret = request.cookies.get(_COOKIE)
        if not secret:
            raise unauthorized("sign in")
        row, now = self._sessions.c, database_now()
        query = select(row.key_id).where(row.id == digest_of(secret), row.expires_at > now)
        for session in self._database.read(query):
            stored = self._keys.find(session.key_id)
            if stored and stored[0].is_valid:
                return stored[0].caller
        raise unauthorized("the session has ended")

    def form(self, visit: Visit) -> Response:
        return visit.show("sign_in.html", to=visit.query.get("to", ""), wrong=False)

    def enter(self, visit: Visit) -> Response:
        token, to = visit.form.get("key", "").strip(), visit.form.get("to", "")
        try:
            key = self._keys.of_token(token)
        except Refused:
            visit.note("sign-in refused")
            return visit.show("sign_in.html", 401, to=to, wrong=True)
        self._end(visit)
        secret, now = secrets.token_urlsafe(32), database_now()
        self._database.add_if_absent(
            self._sessions,
            id=digest_of(secret),
            key_id=key.id,
            created_at=now,
            expires_at=later(now, _LASTS),
        )
        ended = self._sessions.c.expires_at <= now
        self._database.execute(delete(self._sessions).where(ended))
        visit.caller = key.caller
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
            row = self._sessions.c
            self._database.execute(delete(self._sessions).where(row.id == digest_of(secret)))


def _inside(to: str) -> str:
    is_path = to.startswith("/") and not to.startswith(("//", "/\\"))
    return to if is_path and to.isprintable() else "/"
