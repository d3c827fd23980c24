"""What travels between the windows and their shards: where a message is to be, is, or cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID, uuid4

from dispatcher.redis_keys import ShardKeys
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


class Place(NamedTuple):
    """Where a message was booked, or held. The id is a twin's when a twin booked first."""

    message_id: UUID
    at_ms: int


class Order(NamedTuple):
    """One of many messages to book in one shard; ``place`` tells the caller which it is."""

    place: int
    group: Group
    message_id: UUID
    asked_ms: int
    latest_ms: int
    submit: Submit | None


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
