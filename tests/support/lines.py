"""Lines of a history: what SQL and Redis hold, by which terms, and what callers were told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import select

from dispatcher import Settings
from dispatcher.quota import AnyQuota, parse_limit
from dispatcher.redis.keys import scope_of
from dispatcher.scope import OWN_SCOPE, counted
from dispatcher.store.database import Database
from dispatcher.times.send_time import to_ms
from tests.support.history import NEVER, now_us, place_of
from tests.support.reserving import scores
from tests.support.tables import IS_MESSAGE, attempts, messages

Lines = Iterator[dict[str, Any]]


def us(instant: datetime) -> int:
    return int(instant.timestamp() * 1_000_000 + 0.5)


def terms_of(
    settings: Settings, own_limits: Mapping[str, Sequence[str]] | None = None, **more: Any
) -> dict[str, Any]:
    """Return what sends and promises are judged by: the quotas, also as limits of each scope.

    ``own_limits`` are those of single scopes, such as ``tenant acme``.
    """
    quotas = {kind: _rules(quotas) for kind, quotas in settings.quotas_of.items()}
    limits = {
        f"channel {name}": _rules(channel.limits) for name, channel in settings.channels.items()
    }
    own = own_limits or {}
    limits |= {name: _rules(map(parse_limit, texts)) for name, texts in own.items()}
    usual = {
        "kind": "terms",
        "at": 0,
        "quotas": quotas,
        "kept": {kind: _kept(quotas) for kind, quotas in settings.quotas_of.items()},
        "limits": limits | {"scope": quotas.get(OWN_SCOPE, [])},
        "concurrency": {},
        "longest_ms": 0,
        "expiry_slack_us": 500_000,
        "recovery_ms": NEVER,
        "answer_ms": NEVER,
    }
    return usual | more


def _rules(rules: Iterable[Any]) -> list[list[int]]:
    return [[rule.count, getattr(rule, "length_ms", 0)] for rule in rules]


def _kept(quotas: Iterable[AnyQuota]) -> list[list[int]]:
    """Return of each quota that keeps places the priority below which they are not to be had.

    Then come the places that are left, and within how many ms.
    """
    return [
        [quota.kept.priority, quota.count - quota.kept.count, getattr(quota, "length_ms", 0)]
        for quota in quotas
        if quota.kept is not None
    ]


def told(accepted: Iterable[UUID], cancelled: Iterable[UUID] = ()) -> Lines:
    """Yield the calls of callers whose submits and cancels were all done before anything began."""
    for op, ids in (("submit", accepted), ("cancel", cancelled)):
        for id_ in map(str, ids):
            line = {"at": 0, "n": f"{op} {id_}", "id": id_}
            asked = {"op": op, "who": "", "tag": id_, "key": None, "digest": ""}
            yield line | asked | {"kind": "call"}
            yield line | {"kind": "answer", "answer": "ok"}


def of_row(row: Any, kinds: Collection[str], **more: Any) -> dict[str, Any]:
    """Return the line of a row; its message counts in scopes of these kinds."""
    scopes = counted(kinds, scope=row.scope, channel=row.channel, scopes=row.scopes)
    line = {
        "kind": "row",
        "at": now_us(),
        "id": str(row.id),
        "tag": str(row.id),
        "digest": "",
        "channel": row.channel,
        "scope": row.scope,
        "scopes": [(scope.kind, scope.name) for scope in scopes],
        "status": row.status,
        "ended_at": row.finished_at and us(row.finished_at),
        "token": row.claim_token,
        "attempt_count": row.attempt_count,
        "max_attempts": row.max_attempts,
        "priority": row.priority,
        "send_at_ms": to_ms(row.send_at),
        "expires_at_ms": row.expires_at and to_ms(row.expires_at),
        "key": row.idempotency_key,
        "on_unknown": row.on_unknown,
        "tail": row.tail,
        "event": row.event,
    }
    return line | more


def of_attempt(message_id: UUID, attempt: Any) -> dict[str, Any]:
    return {
        "kind": "attempt",
        "at": now_us(),
        "id": str(message_id),
        "token": attempt.token,
        "started_at": us(attempt.started_at),
        "finished_at": attempt.finished_at and us(attempt.finished_at),
        "outcome": attempt.outcome,
    }


def stored(
    database: Database, kinds: Collection[str], told_of: Callable[[Any], Any] = lambda _: {}
) -> Lines:
    """Yield all messages of a store with their attempts, read past the code."""
    with database.engine.connect() as connection:
        rows = connection.execute(select(messages).where(IS_MESSAGE)).all()
        tries = connection.execute(select(attempts)).all()
    yield from (of_row(row, kinds, **told_of(row)) for row in rows)
    yield from (of_attempt(attempt.message_id, attempt) for attempt in tries)


def places(client: redis.Redis, namespace: str) -> Lines:
    for key in client.scan_iter(match=f"{{{namespace}:*}}:window*", count=1_000):
        if (scope := scope_of(key)) is None:
            continue
        for member, at_ms in scores(client, key).items():
            yield {
                "kind": "place",
                "at": now_us(),
                "of": scope[0],
                "scope": scope[1],
                "id": place_of(str(UUID(bytes=member[:16])), member[16:].decode()),
                "at_ms": at_ms,
            }
