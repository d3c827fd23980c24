"""What travels between the windows and their shards: where a message is to be, is, or cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID, uuid4

from dispatcher.redis.keys import ShardKeys, shard_of
from dispatcher.reservation.terms import AnyQuota, Terms
from dispatcher.scope import Scope


@dataclass(frozen=True, slots=True)
class Submit:
    """One call of submit with an idempotency key. Twins are submits that share the key."""

    key: str
    fingerprint: str
    token: str = field(default_factory=lambda: uuid4().hex)


class Group(NamedTuple):
    """Those scopes of some terms that lie in one shard; their windows are judged together."""

    keys: ShardKeys
    terms: Terms
    scopes: tuple[Scope, ...]

    @property
    def windows(self) -> list[str]:
        """The names of the windows, in the order of the scopes."""
        return [self.keys.window(scope.name, scope.kind) for scope in self.scopes]


def own_shard(terms: Terms, shards: Sequence[ShardKeys]) -> ShardKeys:
    """Return the shard of a message's own scope."""
    return shards[shard_of(terms.scopes[0].home, len(shards))]


def grouped(terms: Terms, shards: Sequence[ShardKeys]) -> list[Group]:
    """Return the scopes of ``terms`` by shard, in the order in which they are booked.

    All messages take the windows that they share in the same order, so that of two that want the
    same last places one gets them. So what lies in the message's own shard by chance is judged
    with its own scope only where no other shard comes before.
    """
    home, own = terms.scopes[0].home, own_shard(terms, shards)
    if len(terms.scopes) == 1:
        return [Group(own, terms, terms.scopes)]
    near = [scope for scope in terms.scopes if scope.home == home]
    far: dict[ShardKeys, list[Scope]] = {}
    for scope in terms.scopes:
        if scope.home != home:
            far.setdefault(shards[shard_of(scope.home, len(shards))], []).append(scope)
    ordered = sorted(far, key=lambda keys: keys.shard)
    if ordered and ordered[0] == own:
        near += far[ordered.pop(0)]
    others = [Group(keys, terms, tuple(far[keys])) for keys in ordered]
    return [Group(own, terms, tuple(near)), *others]


class Place(NamedTuple):
    """Where a message was booked, or held. The id is a twin's when a twin booked first.

    ``held_at_ms`` is when that was, for a hold, in ms by the clock of Redis.
    """

    message_id: UUID
    at_ms: int
    held_at_ms: int = 0


class Request(NamedTuple):
    """One of many messages to book: ``asked_ms``, or the first slot up to ``latest_ms``."""

    message_id: UUID
    terms: Terms
    asked_ms: int
    latest_ms: int
    submit: Submit | None = None


class Batch(NamedTuple):
    """Messages to book in one shard, one after the other.

    ``scopes`` are, for each, those that lie in the shard.
    """

    keys: ShardKeys
    requests: Sequence[Request]
    scopes: Sequence[tuple[Scope, ...]]

    def group(self, place: int) -> Group:
        """Return the scopes of one of the messages."""
        return Group(self.keys, self.requests[place].terms, self.scopes[place])


@dataclass(frozen=True, slots=True)
class Booking:
    """A place in the windows. ``message_id`` is the twin's when a twin booked first."""

    message_id: UUID
    terms: Terms
    send_at: datetime
    submit: Submit | None = None


@dataclass(frozen=True, slots=True)
class Moving:
    """A place held for a message that still has another. Take it or drop it.

    ``held_at_ms`` is when it was held or seen, in ms by the clock of Redis.
    """

    message_id: UUID
    terms: Terms
    send_at: datetime
    hold: bytes
    held_at_ms: int = 0


class Blocked(NamedTuple):
    """Why a time does not fit, and until when.

    ``scope`` and ``quota`` are None where quiet hours are the reason. ``is_slot`` tells whether
    ``until_ms`` is known to fit this shard; if not, there is at least no slot before it.
    """

    until_ms: int
    scope: Scope | None
    quota: AnyQuota | None
    conflicting: tuple[UUID, ...]
    is_slot: bool


def new_hold(message_id: UUID) -> bytes:
    """Return a member for a place that is not a message's yet: its id, then a random token."""
    return message_id.bytes + uuid4().hex[:12].encode()
