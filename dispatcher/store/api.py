"""The keys of the HTTP API and the page, and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Row, and_, delete, or_, select, update

from dispatcher.store.database import Database
from dispatcher.store.engines.types import database_now, later

_SEEN_EVERY = timedelta(minutes=1)


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
        key_id: str,
        secret_digest: str,
        *,
        scope: tuple[str, str] | None,
        **values: object,
    ) -> ApiKey | None:
        """Store a new key, with further ``values`` of :class:`ApiKey`.

        Return None where another one ``follows`` the same key, "" for none.
        """
        kind, name = scope or (None, None)
        values |= {"secret_digest": secret_digest, "scope_kind": kind, "scope_name": name}
        self._database.add_if_absent(self._keys, id=key_id, created_at=database_now(), **values)
        stored = self.find(key_id)
        return stored[0] if stored else None

    def find(self, key_id: str) -> tuple[ApiKey, str] | None:
        for row in self._database.read(self._query.where(self._keys.c.id == key_id)):
            return _key(row), row.secret_digest
        return None

    def named(self, name: str | None = None) -> list[ApiKey]:
        row = self._keys.c
        query = self._query.order_by(row.name, row.created_at, row.id)
        if name is not None:
            query = query.where(row.name == name)
        return list(map(_key, self._database.read(query)))

    def expire(self, key_id: str, *, within: timedelta) -> None:
        row, end = self._keys.c, later(database_now(), within)
        ends_later = or_(row.expires_at.is_(None), row.expires_at > end)
        change = update(self._keys).where(row.id == key_id, ends_later).values(expires_at=end)
        self._database.execute(change)

    def revoke(self, key_ids: Sequence[str]) -> None:
        row = self._keys.c
        change = update(self._keys).where(row.id.in_(key_ids), row.revoked_at.is_(None))
        self._database.execute(change.values(revoked_at=database_now()))

    def note_use(self, key_id: str) -> None:
        row, now = self._keys.c, database_now()
        is_old = or_(row.last_used_at.is_(None), row.last_used_at < later(now, -_SEEN_EVERY))
        change = update(self._keys).where(row.id == key_id, is_old).values(last_used_at=now)
        self._database.execute(change)


class Sessions:
    """Sign-ins on the page, by a digest of the browser's secret. One ends with its key."""

    def __init__(self, database: Database, keys: ApiKeys) -> None:
        self._database = database
        self._keys = keys
        self._sessions = database.tables.sessions

    def begin(self, session_id: str, key_id: str, *, lasts: timedelta) -> None:
        now = database_now()
        values = {"created_at": now, "expires_at": later(now, lasts)}
        self._database.add_if_absent(self._sessions, id=session_id, key_id=key_id, **values)
        self._database.execute(delete(self._sessions).where(self._sessions.c.expires_at <= now))

    def key_of(self, session_id: str) -> ApiKey | None:
        row = self._sessions.c
        query = select(row.key_id).where(row.id == session_id, row.expires_at > database_now())
        for session in self._database.read(query):
            stored = self._keys.find(session.key_id)
            return stored[0] if stored and stored[0].is_valid else None
        return None

    def end(self, session_id: str) -> None:
        self._database.execute(delete(self._sessions).where(self._sessions.c.id == session_id))


def _key(row: Row[Any]) -> ApiKey:
    values = {name: getattr(row, name) for name in ApiKey._fields if name != "scope"} | {
        "rights": tuple(row.rights),
        "channels": None if row.channels is None else tuple(row.channels),
        "scope": None if row.scope_kind is None else (row.scope_kind, row.scope_name),
        "is_valid": bool(row.is_valid),
    }
    return ApiKey(**values)
