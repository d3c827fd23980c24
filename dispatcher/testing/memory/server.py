"""What a Redis holds, in memory, and what may happen to it."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from dispatcher.redis.keys import PermitKeys, ShardKeys, permit_parts
from dispatcher.times.send_time import to_ms

_LAST = b"\xff" * 64
"""A member behind all others of its score."""


class ScoredSet(dict[bytes, float]):
    """Members with their scores, as a ZSET has them: ``ordered`` by score, then by member."""

    def __init__(self, scores: Mapping[bytes, float] | None = None) -> None:
        super().__init__()
        self.ordered: list[tuple[float, bytes]] = []
        if scores:
            self.update(scores)

    def __setitem__(self, member: bytes, score: float) -> None:
        known = self.get(member)
        if known == score:
            return
        if known is not None:
            del self.ordered[bisect_left(self.ordered, (known, member))]
        super().__setitem__(member, score)
        insort(self.ordered, (score, member))

    def __delitem__(self, member: bytes) -> None:
        del self.ordered[bisect_left(self.ordered, (self[member], member))]
        super().__delitem__(member)

    def __deepcopy__(self, _: object) -> Self:
        return type(self)(self)

    def pop(self, member: bytes, *default: Any) -> Any:
        """Remove a member and return its score."""
        if member not in self:
            return super().pop(member, *default)
        score = self[member]
        del self[member]
        return score

    def setdefault(self, member: bytes, score: float = 0) -> float:
        """Give a member that is new a score; return what it has."""
        if member not in self:
            self[member] = score
        return self[member]

    def update(self, scores: Any = (), **_: float) -> None:
        """Give many members their scores."""
        for member, score in dict(scores).items():
            self[member] = score

    def clear(self) -> None:
        """Remove all members."""
        super().clear()
        self.ordered.clear()

    def above(self, score: float) -> int:
        """Return how many members have a higher score."""
        return len(self.ordered) - bisect_right(self.ordered, (score, _LAST))

    def between(self, least: float, below: float) -> int:
        """Return how many members have at least this score and are below another one."""
        return bisect_left(self.ordered, (below, b"")) - bisect_left(self.ordered, (least, b""))

    def drop_to(self, score: float) -> None:
        """Remove all members up to a score, itself included."""
        for _, member in self.ordered[: bisect_right(self.ordered, (score, _LAST))]:
            del self[member]


@dataclass(slots=True)
class Epoch:
    """Exists exactly while a part is complete."""

    opened_at_ms: int
    marker: str = ""
    checked: bool = False


@dataclass(slots=True)
class Duplicates:
    """Submits under way with one idempotency key."""

    id: UUID
    fingerprint: str
    ends_at_ms: int
    by: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Moved:
    """The token of the last move of a message in each of its windows in a shard."""

    ends_at_ms: int
    tokens: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """A ZSET: permits with their times, waiting messages with their turns, or logs with room."""

    scores: ScoredSet = field(default_factory=ScoredSet)
    ends_at_ms: int = 0


@dataclass(slots=True)
class Contents:
    """What a server holds."""

    epochs: dict[Any, Epoch] = field(default_factory=dict)
    markers: dict[Any, tuple[str, int]] = field(default_factory=dict)
    windows: dict[str, ScoredSet] = field(default_factory=lambda: defaultdict(ScoredSet))
    pending: dict[Any, dict[tuple[bytes, str], int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    moved: dict[str, Moved] = field(default_factory=dict)
    duplicates: dict[str, Duplicates] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    lines: dict[str, Log] = field(default_factory=dict)
    room: Log = field(default_factory=Log)
    closings: dict[str, int] = field(default_factory=dict)


class Server:
    """One Redis, and what may happen to it. What has a life is there up to its last millisecond."""

    def __init__(self, clock: Callable[[], datetime], *, namespace: str, shards: int) -> None:
        self._clock = clock
        self.keys = tuple(ShardKeys(namespace, shard) for shard in range(shards))
        of_permits = permit_parts(namespace, shards)
        self.permit_keys = of_permits[0]  # all permit logs lie here
        self.parts: tuple[ShardKeys | PermitKeys, ...] = (*self.keys, *of_permits)
        self.holds = Contents()
        self.number = 1

    def now_ms(self) -> int:
        """Return the present by the server's clock."""
        return to_ms(self._clock())

    def flush(self) -> None:
        """Forget everything."""
        self.holds = Contents()

    def snapshot(self) -> Contents:
        """Return a copy of everything, as a replica that lags behind has it."""
        return copy.deepcopy(self.holds)

    def fail_over(self, replica: Contents) -> None:
        """Become another server with older data. Whoever connects takes the epochs back."""
        self.holds = copy.deepcopy(replica)
        self.holds.epochs.clear()
        self.holds.markers.clear()
        self.number += 1

    def move_token(self, keys: ShardKeys, message_id: UUID, window: str) -> int:
        """Return the token of the last move of a message that a window took, or -1."""
        found = self.holds.moved.get(keys.moved(message_id))
        if found is None or found.ends_at_ms < self.now_ms():
            return -1
        return found.tokens.get(window, -1)

    def tell(
        self, keys: ShardKeys, message_id: UUID, window: str, token: int, *, life_ms: int
    ) -> None:
        """Let a window remember a move, for so long."""
        name, now_ms = keys.moved(message_id), self.now_ms()
        found = self.holds.moved.get(name)
        if found is None or found.ends_at_ms < now_ms:
            found = self.holds.moved[name] = Moved(0)
        found.tokens[window] = token
        found.ends_at_ms = now_ms + life_ms

    def marker_of(self, part: Any) -> str | None:
        """Return who is rebuilding this part."""
        found = self.holds.markers.get(part)
        return found[0] if found is not None and found[1] >= self.now_ms() else None

    def keep_marker(self, part: Any, marker: str, *, life_ms: int) -> bool:
        """Let a marker live on where it still is on this part; tell whether it is."""
        present = self.marker_of(part)
        if present is None or present.removesuffix("+") != marker:
            return False
        self.holds.markers[part] = present, self.now_ms() + life_ms
        return True

    def fill(self, part: Any, marker: str, *, life_ms: int) -> bool:
        """Keep a marker, and let nothing of its part be wiped any more."""
        if not self.keep_marker(part, marker, life_ms=life_ms):
            return False
        self.holds.markers[part] = f"{marker}+", self.now_ms() + life_ms
        return True
