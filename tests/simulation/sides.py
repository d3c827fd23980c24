"""Redis and its double side by side: asked the same, at the same time by the clocks of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

from dispatcher.errors import DispatcherError
from dispatcher.limiters import Permits
from dispatcher.limiters.permits import reaches_ms
from dispatcher.quota import Limit, Quota
from dispatcher.redis.keys import line_of
from dispatcher.reservation import (
    Fence,
    Rebuild,
    Rules,
    Upkeep,
    Windows,
    booking,
    windows,
)
from dispatcher.testing.memory.permits import MemoryPermits
from dispatcher.testing.memory.server import Contents, Server
from dispatcher.testing.memory.shards import MemoryShards, windows_on
from dispatcher.testing.memory.windows_upkeep import MemoryUpkeep
from dispatcher.times.send_time import from_ms
from tests.simulation.faults import Line
from tests.support.limiters import CLOCK, START_US, Clocked

UNDER_WAY = timedelta(seconds=16)
MARKER_LIFE = timedelta(seconds=11)
MS = timedelta(milliseconds=1)
QUOTAS = {
    "": (Quota(2, 3_000), Quota(5, 15_000)),
    "channel.sms": (Quota(3, 4_000),),
    "recipient.sms": (Quota(1, 900),),
    "tenant": (Quota(3, 2_000), Quota(4, 9_000)),
}
SCOPE_LIMITS = (Limit(2, 3_000), Limit(5, 15_000))
CHANNEL_LIMITS = {"sms": (Limit(2, 2_500), Limit(3, 8_000))}


class NumberedRedis(Clocked):
    """A server on the test's clock that can become another one."""

    number = 1

    def info(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"run_id": f"run {self.number}", "maxmemory_policy": "noeviction"}


@dataclass
class Side:
    """What is asked on one side: of Redis, or of the double."""

    windows: Windows
    upkeep: Any
    permits: Any
    rebuilds: list[Rebuild] = field(default_factory=list)
    holds: int = 0
    ids: int = 0

    def new_hold(self, message_id: UUID) -> bytes:
        self.holds += 1
        return message_id.bytes + b"hold%08d" % self.holds

    def new_id(self) -> UUID:
        self.ids += 1
        return UUID(int=(1 << 127) + self.ids)

    def begun(self, rebuild: Rebuild | None) -> Any:
        """Keep a rebuild; return what both sides know of it."""
        if rebuild is not None:
            self.rebuilds.append(rebuild)
        return None if rebuild is None else rebuild.parts

    def marker(self, number: int) -> str:
        """Return the marker of a rebuild, which all its parts have: they are on one server."""
        rebuild = self.rebuilds[number]
        return rebuild.marker(rebuild.parts[0])


class Sides:
    """The same calls to Redis and to the double, at the same time by the clocks of both."""

    def __init__(self, path: str) -> None:
        self.redis = NumberedRedis(unix_socket_path=path)
        self.redis.set_us(START_US)
        self.server = Server(self.now, namespace="both", shards=3)
        reaches = {kind: max(each.length_ms for each in some) for kind, some in QUOTAS.items()}
        permits = reaches_ms(SCOPE_LIMITS, CHANNEL_LIMITS)
        self.fence = Fence(namespace="both", shards=3, reaches_ms=reaches, permits_ms=permits)
        limits: dict[str, Any] = {"scope_limits": SCOPE_LIMITS, "channel_limits": CHANNEL_LIMITS}
        marked: dict[str, Any] = {"marker_life": MARKER_LIFE, "under_way": UNDER_WAY}
        numbers = count()
        shards = MemoryShards(self.server, QUOTAS, under_way=UNDER_WAY)
        keys = self.server.keys
        self.sides = (
            Side(
                Windows(self.redis, Rules(QUOTAS), keys=keys, under_way=UNDER_WAY),
                Upkeep(self.redis, self.fence, **marked),
                Permits(self.redis, namespace="both", shards=1, clock=_Standing(), **limits),
            ),
            Side(
                windows_on(Line(shards), QUOTAS, keys=keys, under_way=UNDER_WAY),
                MemoryUpkeep(
                    self.server, longest_ms=max(reaches.values()),
                    new_marker=lambda: f"marker {next(numbers)}", **marked,
                ),
                MemoryPermits(self.server, **limits),
            ),
        )  # fmt: skip
        self.replica: tuple[dict[bytes, bytes], dict[str, int], Contents] | None = None
        self.answers: Counter[str] = Counter()

    def now(self) -> datetime:
        """Return the present by both clocks, to the millisecond."""
        return from_ms(self.redis.now_us // 1_000)

    def let_pass(self, length_ms: int) -> None:
        """Let time pass."""
        self.redis.advance(length_ms * MS)

    def ends(self) -> dict[str, int]:
        """Return when the keys end that have a life."""
        found = cast("dict[bytes, bytes]", self.redis.hgetall(CLOCK))
        return {name[7:].decode(): int(at) for name, at in found.items() if name != b"now"}

    def _bury(self) -> None:
        """Let what has come to its end be gone: not only scripts look for it."""
        for name, end_ms in self.ends().items():
            if end_ms < self.server.now_ms():
                self.redis.delete(name)
                self.redis.hdel(CLOCK, f"end of {name}")

    def ask(self, what: str, call: Callable[[Side], Any]) -> Any:
        """Ask both; return their answer, which must be the same."""
        found = []
        self._bury()
        for side in self.sides:
            with (
                patch.object(windows, "new_hold", side.new_hold),
                patch.object(booking, "new_id", side.new_id),
            ):
                found.append(_answer(side, call))
        real, double = found
        assert double == real, what
        self.compare(what)
        self.answers[what] += not isinstance(real, str)
        return double

    def compare(self, after: str) -> None:
        """Compare all that both hold."""
        self._bury()
        real, double = self._real(), self._double()
        wrong = {
            name: (double.get(name), real.get(name))
            for name in double.keys() | real.keys()
            if double.get(name) != real.get(name)
        }
        assert not wrong, f"{after}: {wrong}"

    def _real(self) -> dict[str, Any]:
        ends = self.ends()
        found: dict[str, Any] = {}
        for name in (each.decode() for each in cast("list[bytes]", self.redis.keys("{both:*"))):
            end = ends.get(name)
            kind = cast(bytes, self.redis.type(name)).decode()
            read = {"zset": self._scores, "hash": self.redis.hgetall, "string": self.redis.get}
            found[name] = read[kind](name), end
        known = {
            f"{real.marker(part)}{end}": f"{double.marker(part)}{end}"
            for real, double in self._pairs()
            for part in real.parts
            for end in ("", "+")
        }
        for name, (value, end) in found.items():
            if name.endswith(":epoch"):
                opened, checked = int(value[b"opened_at_ms"]), b"checked" in value
                found[name] = opened, checked
            elif name.endswith(":rebuild"):
                found[name] = known[value.decode()], end
            elif ":duplicates:" in name:
                by = {each[3:].decode() for each in value if each.startswith(b"by:")}
                found[name] = UUID(bytes=value[b"id"]), value[b"fingerprint"].decode(), by, end
            elif ":moved:" in name:
                found[name] = {key.decode(): int(token) for key, token in value.items()}, end
            elif ":closing:" in name:
                found[name] = int(value)
            elif ":permits:" not in name:
                found[name] = value
        return found

    def _pairs(self) -> Iterator[tuple[Rebuild, Rebuild]]:
        return zip(self.sides[0].rebuilds, self.sides[1].rebuilds, strict=True)

    def _scores(self, name: str) -> dict[bytes, float]:
        return dict(cast("Any", self.redis.zrange(name, 0, -1, withscores=True)))

    def _double(self) -> dict[str, Any]:
        holds, now_ms = self.server.holds, self.server.now_ms()
        lines = {line_of(name): line for name, line in holds.lines.items()}
        room = {self.server.permit_keys.room: holds.room}
        found: dict[str, Any] = {name: each for name, each in holds.windows.items() if each}
        found |= {
            keys.pending: {member + name.encode(): at for (member, name), at in each.items()}
            for keys, each in holds.pending.items()
            if each
        }
        found |= {part.epoch: (at.opened_at_ms, at.checked) for part, at in holds.epochs.items()}
        found |= {part.rebuild: each for part, each in holds.markers.items() if each[1] >= now_ms}
        found |= {
            name: (each.id, each.fingerprint, each.by, each.ends_at_ms)
            for name, each in holds.duplicates.items()
            if each.ends_at_ms >= now_ms
        }
        found |= {
            name: (each.tokens, each.ends_at_ms)
            for name, each in holds.moved.items()
            if each.ends_at_ms >= now_ms
        }
        found |= {
            name: (log.scores, log.ends_at_ms)
            for name, log in (holds.logs | lines | room).items()
            if log.scores and log.ends_at_ms >= now_ms
        }
        return found | {
            self.server.permit_keys.closing(channel): until_ms
            for channel, until_ms in holds.closings.items()
            if until_ms >= now_ms
        }

    def keep(self) -> None:
        """Remember how things stand, as a replica does that lags behind."""
        names = [each for each in cast("list[bytes]", self.redis.keys("*")) if each[:1] == b"{"]
        dumps = {name: cast(bytes, self.redis.dump(name)) for name in names}
        self.replica = dumps, self.ends(), self.server.snapshot()

    def flush(self) -> None:
        """Empty both."""
        now_us = self.redis.now_us
        self.redis.flushdb()
        self.redis.set_us(now_us)
        self.server.flush()
        self.compare("flush")

    def fail_over(self) -> None:
        """Let another server take over, with what was kept."""
        if self.replica is None:
            return
        dumps, ends, contents = self.replica
        self.flush()
        for name, dump in dumps.items():
            self.redis.restore(name, 0, dump)
        for key, at_ms in ends.items():
            self.redis.hset(CLOCK, f"end of {key}", at_ms)
        self.redis.number += 1
        self.fence.incomplete(self.redis, self.fence.parts)
        self.server.fail_over(contents)
        self.compare("fail over")


class _Standing:
    """A clock that nobody asks: there are no calendar limits."""

    def now(self) -> datetime:
        return from_ms(START_US // 1_000)

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        del seconds


def _answer(side: Side, call: Callable[[Side], Any]) -> Any:
    try:
        answer = call(side)
    except DispatcherError as error:
        return repr(error)
    if isinstance(answer, list):
        return [repr(each) if isinstance(each, DispatcherError) else each for each in answer]
    return repr(answer) if isinstance(answer, DispatcherError) else answer
