"""Many messages on their way into the windows, by shard."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.redis_keys import ShardKeys
from dispatcher.reservation.places import Batch, Group, Request
from dispatcher.reservation.posted import Posted
from dispatcher.reservation.windows import Windows
from dispatcher.scope import Scope

Waiting = dict[ShardKeys, list[int]]
"""By shard: which of many messages are to be booked there next, in order."""


class Posting:
    """Messages that are being booked, whose answers are still to be collected."""

    def __init__(self, requests: Sequence[Request], windows: Windows) -> None:
        self.requests = requests
        self._windows = windows
        # Most messages have one scope, and need no list of their own.
        self._groups = [
            windows.groups(each.terms) if len(each.terms.scopes) > 1 else None for each in requests
        ]
        self.deepest = max((len(each) for each in self._groups if each), default=1)
        self.waiting: Waiting = {}
        self.batches: list[Batch] = []
        self.posted: Posted | None = None

    def groups(self, place: int) -> Sequence[Group]:
        """Return the scopes of a message by shard, in the order in which they are booked."""
        return self._groups[place] or self._windows.groups(self.requests[place].terms)

    def has_level(self, place: int, level: int) -> bool:
        """Tell whether a message has scopes in so many shards and one more."""
        groups = self._groups[place]
        return groups is not None and len(groups) > level

    def keys(self, place: int, level: int) -> ShardKeys:
        """Return the shard in which a message is booked at a level."""
        groups = self._groups[place]
        if groups is None:
            return self._windows.home_of(self.requests[place].terms)
        return groups[level].keys

    def scopes(self, place: int, level: int) -> tuple[Scope, ...]:
        """Return the scopes of a message in that shard."""
        groups = self._groups[place]
        return self.requests[place].terms.scopes if groups is None else groups[level].scopes
