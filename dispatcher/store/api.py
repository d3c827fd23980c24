"""The keys of the HTTP API and the page, sessions, and the answers that a repeated call gets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, and_, delete, exists, or_, select, update

from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later
from dispatcher.store.schema import NewReply

_SEEN_EVERY = timedelta(minutes=1)
_TRIES = 5
_LOOK_AGAIN = timedelta(days=1)


class ApiKey(NamedTuple):
    """One key of the HTTP API, without its secret.

    Keys of one ``name`` are one caller: a key and the one that replaces it. ``channels`` are those
    that it may use, None for all; ``scope`` is the kind and the name of the only scope whose
    messages it may see. ``rate`` limits its calls, as text (``"100/second"``), None for the
    default. ``last_used_at`` is at most a minute old. ``follows`` is the id of the key of that name
    before it, "" for the first one. Instants are the database's (aware UTC).
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


class ApiKeys:
    """The keys of the HTTP API, with digests of their secrets. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys = database.tables.api_keys
        row, now = self._keys.c, database_now()
        self._is_valid = and_(
            row.revoked_at.is_(None), or_(row.expires_at.is_(None), row.expires_at > now)
        )
        self._query = select(self._keys, self._is_valid.label("is_valid"))

    def add(
        self,
        key_id: str,
        secret_digest: str,
        *,
        name: str,
        rights: Sequence[str],
        channels: Sequence[str] | None,
        scope: tuple[str, str] | None,
        rate: str | None,
        expires_at: datetime | None,
        follows: str,
    ) -> ApiKey | None:
        """Store a new key, and return it; None where another one ``follows`` the same key.

        ``follows`` is the id of the key of that name that no other one follows, "" for none.
        """
        kind, scope_name = scope or (None, None)
        values = {
            "id": key_id, "name": name, "secret_digest": secret_digest, "rights": list(rights),
            "channels": None if channels is None else list(channels), "scope_kind": kind,
            "scope_name": scope_name, "rate": rate, "created_at": database_now(),
            "expires_at": expires_at, "follows": follows,
        }  # fmt: skip
        self._database.add_if_absent(self._keys, **values)
        found = self.find(key_id)
        return None if found is None else found[0]

    def find(self, key_id: str) -> tuple[ApiKey, str] | None:
        """Return the key of that id, and the digest of its secret."""
        for row in self._database.read(self._query.where(self._keys.c.id == key_id)):
            return _key(row), row.secret_digest
        return None

    def named(self, name: str | None = None) -> list[ApiKey]:
        """Return all keys, or those of one name, the oldest first."""
        row = self._keys.c
        query = self._query.order_by(row.name, row.created_at, row.id)
        if name is not None:
            query = query.where(row.name == name)
        return [_key(each) for each in self._database.read(query)]

    def expire(self, key_id: str, *, within: timedelta) -> None:
        """Let a key end after that time, unless it ends before."""
        row, end = self._keys.c, later(database_now(), within)
        ends_later = or_(row.expires_at.is_(None), row.expires_at > end)
        change = update(self._keys).where(row.id == key_id, ends_later).values(expires_at=end)
        self._database.execute(change)

    def revoke(self, key_ids: Sequence[str]) -> None:
        """End keys at once. Another call changes nothing."""
        row = self._keys.c
        change = update(self._keys).where(row.id.in_(key_ids), row.revoked_at.is_(None))
        self._database.execute(change.values(revoked_at=database_now()))

    def note_use(self, key_id: str) -> None:
        """Write down that a key is in use, at most once a minute."""
        row, now = self._keys.c, database_now()
        is_old = or_(row.last_used_at.is_(None), row.last_used_at < later(now, -_SEEN_EVERY))
        change = update(self._keys).where(row.id == key_id, is_old).values(last_used_at=now)
        self._database.execute(change)


class Sessions:
    """Sign-ins on the page, each with a key. Every call may be run again.

    ``session_id`` is a digest of the secret that the browser has. A session ends with its key.
    Raises StoreUnavailable.
    """

    def __init__(self, database: Database, keys: ApiKeys) -> None:
        self._database = database
        self._keys = keys
        self._sessions = database.tables.sessions

    def begin(self, session_id: str, key_id: str, *, lasts: timedelta) -> None:
        """Store a session that ends after that time. Forgets those that have ended."""
        now = database_now()
        values = {"created_at": now, "expires_at": later(now, lasts)}
        self._database.add_if_absent(self._sessions, id=session_id, key_id=key_id, **values)
        self._database.execute(delete(self._sessions).where(self._sessions.c.expires_at <= now))

    def key_of(self, session_id: str) -> ApiKey | None:
        """Return the key of a session; None where the session or the key has ended."""
        row = self._sessions.c
        query = select(row.key_id).where(row.id == session_id, row.expires_at > database_now())
        for each in self._database.read(query):
            found = self._keys.find(each.key_id)
            return found[0] if found is not None and found[0].is_valid else None
        return None

    def end(self, session_id: str) -> None:
        """End a session, if there is one."""
        self._database.execute(delete(self._sessions).where(self._sessions.c.id == session_id))


class Reply(NamedTuple):
    """The first answer to a call with an idempotency key.

    ``fingerprint`` is the digest of the call, ``seen`` the version of the message before the call,
    as text (None where there was none). ``status`` and ``body`` are None until the call was
    answered. ``is_new``: this call wrote the note, or an answer of which there was no note.
    """

    fingerprint: str
    seen: str | None
    status: int | None
    headers: dict[str, str]
    body: str | None
    is_new: bool = False
    message_id: UUID | None = None


class Replies:
    """The answers to calls with idempotency keys. Every call may be run again.

    ``reply_id`` is a digest of caller and key. An answer is kept for as long as the message it
    speaks of, and at least for ``keep``. Raises StoreUnavailable.
    """

    def __init__(self, database: Database, *, keep: timedelta) -> None:
        self._database = database
        self._tables = database.tables
        self._keep = keep

    def begin(self, reply_id: str, *, fingerprint: str, seen: str | None) -> Reply:
        """Note that a call begins. Return the note that is stored, which may be an earlier one."""
        if self._add(reply_id, fingerprint=fingerprint, seen=seen):
            return Reply(fingerprint, seen, None, {}, None, is_new=True)
        return self.find(reply_id) or Reply(fingerprint, seen, None, {}, None)

    def new(
        self, reply_id: str, *, fingerprint: str, status: int, headers: dict[str, str], body: str
    ) -> NewReply:
        """Return an answer that :meth:`Messages.add` stores with its message."""
        return NewReply(reply_id, fingerprint, status, headers, body, self._keep)

    def finish(
        self,
        reply_id: str,
        *,
        fingerprint: str,
        status: int,
        headers: dict[str, str],
        body: str,
        message_id: UUID | None,
        begun: bool = True,
    ) -> Reply:
        """Store the answer unless the call has one; return the answer of the call.

        Not ``begun``: the call has noted nothing before.
        """
        answer = {"status": status, "headers": headers, "body": body, "message_id": message_id}
        own = Reply(fingerprint, None, status, headers, body)
        if not begun and self._add(reply_id, fingerprint=fingerprint, **answer):
            return own._replace(is_new=True)
        replies = self._tables.api_replies
        this = (replies.c.id == reply_id, replies.c.fingerprint == fingerprint)
        change = update(replies).where(*this, replies.c.status.is_(None)).values(**answer)
        for _ in range(_TRIES):
            self._database.execute(change)
            found = self.find(reply_id)
            if found is None:  # a refused call with the same key has forgotten it
                self.begin(reply_id, fingerprint=fingerprint, seen=None)
            elif found.fingerprint != fingerprint:  # the key was freed, and used again
                break
            elif found.status is not None:  # else another such call has just begun
                return found
        return own

    def forget(
        self, reply_id: str, *, fingerprint: str, older_than: timedelta = timedelta(0)
    ) -> None:
        """Free the key of a refused call, if its note is at least ``older_than`` old."""
        replies = self._tables.api_replies
        this = (
            replies.c.id == reply_id,
            replies.c.fingerprint == fingerprint,
            replies.c.status.is_(None),
            replies.c.created_at <= later(database_now(), -older_than),
        )
        self._database.execute(delete(replies).where(*this))

    def drop(self, reply_id: str, message_id: UUID) -> None:
        """Free the key of an answer that speaks of this message."""
        replies = self._tables.api_replies
        this = (replies.c.id == reply_id, replies.c.message_id == message_id)
        self._database.execute(delete(replies).where(*this))

    def prune(self, *, limit: int) -> int:
        """Delete answers whose time is over and whose message is gone; return how many it read."""
        tables = self._tables
        replies, now = tables.api_replies, database_now()
        due = select(replies.c.id).where(replies.c.keep_until <= now)
        ids = [row.id for row in self._database.read(due.order_by("keep_until").limit(limit))]
        if not ids:
            return 0
        these = and_(replies.c.id.in_(ids), replies.c.keep_until <= now)
        has_message = exists().where(tables.messages.c.id == replies.c.message_id)
        again = update(replies).where(these, has_message)
        self._database.execute(again.values(keep_until=later(now, _LOOK_AGAIN)))
        self._database.execute(delete(replies).where(these, ~has_message))
        return len(ids)

    def find(self, reply_id: str) -> Reply | None:
        """Return the note of a call, None where there is none."""
        row = self._tables.api_replies.c
        query = select(row.fingerprint, row.seen, row.status, row.headers, row.body, row.message_id)
        for each in self._database.read(query.where(row.id == reply_id)):
            headers = each.headers or {}
            answer = (each.status, headers, each.body)
            return Reply(each.fingerprint, each.seen, *answer, message_id=each.message_id)
        return None

    def _add(self, reply_id: str, **values: Any) -> bool:
        """Store a note, unless there is one of that id; return whether it was stored now."""
        now = database_now()
        values |= {"id": reply_id, "created_at": now, "keep_until": later(now, self._keep)}
        return self._database.add_if_absent(self._tables.api_replies, **values)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        rights=tuple(row.rights),
        channels=None if row.channels is None else tuple(row.channels),
        scope=None if row.scope_kind is None else (row.scope_kind, row.scope_name),
        rate=row.rate,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        follows=row.follows,
        is_valid=bool(row.is_valid),
    )
