"""A Redis in memory that runs the scripts of limiters as they ship, in an interpreter of Lua 5.1.

It has the commands and the functions of ``struct`` that those scripts use, and nothing else.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.extras import needs
from dispatcher.times.clock import Clock, SystemClock
from dispatcher.times.send_time import to_ms

if TYPE_CHECKING:
    from lupa.lua51 import LuaRuntime

_SWEPT_FROM = 1_024
_LAST = b"\xff" * 1_024
"""A member behind all others of its score."""
_SET_UP = b"""
local call, pack, unpack_, size = ...
redis, struct = {call = call}, {pack = pack, unpack = unpack_, size = size}
return assert(loadstring), function(script, keys, args)
  KEYS, ARGV = keys, args
  return script()
end
"""


class _Zset:
    """Members with scores, ordered by score and then by member."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.ordered: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, score: float, member: bytes) -> bool:
        is_new = not self.remove(member)
        self.scores[member] = score
        insort(self.ordered, (score, member))
        return is_new

    def remove(self, member: bytes) -> bool:
        known = self.scores.pop(member, None)
        if known is None:
            return False
        del self.ordered[bisect_left(self.ordered, (known, member))]
        return True


class _Value(NamedTuple):
    value: Any
    """bytes, a dict of bytes, a list of bytes, or a :class:`_Zset`."""
    ends_at_ms: int | None
    """The last millisecond in which it is there."""


class Keyspace:
    """What a Redis holds, and its commands, for one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[bytes, _Value] = {}
        self._swept_at = _SWEPT_FROM
        self.now_us = 0

    def begin(self) -> None:
        """Take the time that the next commands see. Forget what has expired, now and then."""
        now = self._clock.now()
        self.now_us = to_ms(now) * 1_000 + now.microsecond % 1_000
        if len(self._entries) > self._swept_at:
            for name in list(self._entries):
                self._live(name)
            self._swept_at = max(_SWEPT_FROM, 2 * len(self._entries))

    def call(self, command: bytes, *words: bytes | float) -> Any:
        """Run a command. Raises AttributeError for one that no script of the limiters uses."""
        return getattr(self, "_" + command.decode().lower())(*map(word, words))

    def entries(self) -> dict[bytes, tuple[Any, int | None]]:
        """Return what has not expired: the value of each key, and when it expires, in ms."""
        return {name: found for name in list(self._entries) if (found := self._live(name))}

    @property
    def _now_ms(self) -> int:
        return self.now_us // 1_000

    def _live(self, name: bytes) -> _Value | None:
        found = self._entries.get(name)
        if found is not None and found.ends_at_ms is not None and found.ends_at_ms < self._now_ms:
            del self._entries[name]
            return None
        return found

    def _value(self, name: bytes, kind: type) -> Any:
        """Return the value of a key; an empty one of that kind where there is none."""
        found = self._live(name)
        return kind() if found is None else found.value

    def _put(self, name: bytes, value: Any) -> None:
        """Store a value, and keep the expiry of the key; an empty one is deleted."""
        found = self._live(name)
        if value:
            self._entries[name] = _Value(value, None if found is None else found.ends_at_ms)
        else:
            self._entries.pop(name, None)

    # The commands.

    def _time(self) -> list[bytes]:
        return [b"%d" % each for each in divmod(self.now_us, 1_000_000)]

    def _get(self, name: bytes) -> bytes | None:
        found = self._live(name)
        return None if found is None else found.value

    def _set(self, name: bytes, value: bytes, *options: bytes) -> None:
        ends_at_ms = None
        if options == (b"KEEPTTL",):
            found = self._live(name)
            ends_at_ms = None if found is None else found.ends_at_ms
        elif options:
            [_, life] = options
            ends_at_ms = self._now_ms + int(float(life))
        self._entries[name] = _Value(value, ends_at_ms)

    def _del(self, name: bytes) -> int:
        return int(self._entries.pop(name, None) is not None)

    def _incrby(self, name: bytes, by: bytes) -> int:
        value = int(self._get(name) or 0) + int(float(by))
        self._put(name, b"%d" % value)
        return value

    def _decrby(self, name: bytes, by: bytes) -> int:
        return self._incrby(name, b"%d" % -int(float(by)))

    def _pexpireat(self, name: bytes, at_ms: bytes) -> int:
        found = self._live(name)
        if found is not None:
            self._entries[name] = found._replace(ends_at_ms=int(float(at_ms)))
        return int(found is not None)

    def _pexpire(self, name: bytes, life_ms: bytes) -> int:
        return self._pexpireat(name, b"%d" % (self._now_ms + int(float(life_ms))))

    def _pttl(self, name: bytes) -> int:
        found = self._live(name)
        if found is None:
            return -2
        return -1 if found.ends_at_ms is None else found.ends_at_ms - self._now_ms

    def _hget(self, name: bytes, field: bytes) -> bytes | None:
        fields: dict[bytes, bytes] = self._value(name, dict)
        return fields.get(field)

    def _hset(self, name: bytes, field: bytes, value: bytes) -> None:
        fields = self._value(name, dict)
        fields[field] = value
        self._put(name, fields)

    def _hdel(self, name: bytes, field: bytes) -> None:
        fields = self._value(name, dict)
        fields.pop(field, None)
        self._put(name, fields)

    def _llen(self, name: bytes) -> int:
        return len(self._value(name, list))

    def _lindex(self, name: bytes, index: bytes) -> bytes | None:
        values = self._value(name, list)
        at = int(index)
        return values[at] if -len(values) <= at < len(values) else None

    def _lpush(self, name: bytes, *values: bytes) -> None:
        self._put(name, [*reversed(values), *self._value(name, list)])

    def _ltrim(self, name: bytes, first: bytes, last: bytes) -> None:
        values = self._value(name, list)
        end = int(last) + (len(values) if int(last) < 0 else 0)
        self._put(name, values[int(first) : end + 1])

    def _lrem(self, name: bytes, most: bytes, value: bytes) -> int:
        values = self._value(name, list)
        gone = [at for at, each in enumerate(values) if each == value][: int(most)]
        for at in reversed(gone):
            del values[at]
        self._put(name, values)
        return len(gone)

    def _zadd(self, name: bytes, *words: bytes) -> int:
        found: _Zset = self._value(name, _Zset)
        pairs = zip(words[::2], words[1::2], strict=True)
        added = sum([found.add(float(score), member) for score, member in pairs])
        self._put(name, found)
        return added

    def _zrem(self, name: bytes, *members: bytes) -> int:
        found: _Zset = self._value(name, _Zset)
        gone = sum([found.remove(member) for member in members])
        self._put(name, found)
        return gone

    def _zscore(self, name: bytes, member: bytes) -> bytes | None:
        score = self._value(name, _Zset).scores.get(member)
        return None if score is None else word(score)

    def _zcount(self, name: bytes, least: bytes, most: bytes) -> int:
        ordered: list[tuple[float, bytes]] = self._value(name, _Zset).ordered
        first = bisect_left(ordered, (float(least), b""))
        return bisect_right(ordered, (float(most), _LAST)) - first

    def _zrevrange(self, name: bytes, first: bytes, last: bytes, _: bytes) -> list[bytes]:
        ordered = self._value(name, _Zset).ordered
        end = len(ordered) - int(first)
        some = ordered[max(0, end - 1 - int(last) + int(first)) : max(0, end)]
        return [each for score, member in reversed(some) for each in (member, word(score))]

    def _zremrangebyscore(self, name: bytes, _: bytes, most: bytes) -> int:
        found = self._value(name, _Zset)
        end = bisect_right(found.ordered, (float(most), _LAST))
        return self._zrem(name, *[member for _, member in found.ordered[:end]])


def word(value: bytes | str | float) -> bytes:
    """Return an argument as Redis gets it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return b"%d" % value if value == int(value) else b"%.17g" % value


class _Interpreter:
    """Runs scripts on contents of its own. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        with needs("local", "limiters", what="a Redis in memory"):
            from lupa import lua51  # noqa: PLC0415 - of an extra
        self.keyspace = Keyspace(clock)
        self._lock = threading.Lock()
        self._compiled: dict[str, object] = {}
        self._lua: LuaRuntime = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._load, self._call = self._lua.execute(_SET_UP, self._command, _pack, _unpack, _size)

    def run(self, text: str, keys: Sequence[str], args: Sequence[str | int | bytes]) -> Any:
        """Run a script; return its reply as redis-py does: an integer, or a list of them."""
        with self._lock:
            script = self._compiled.get(text)
            if script is None:
                script = self._compiled[text] = self._load(text.encode())
            self.keyspace.begin()
            words = ([word(each) for each in some] for some in (keys, args))
            reply = self._call(script, *map(self._lua.table_from, words))
        if isinstance(reply, int | float):
            return int(reply)
        return [int(each) for each in reply.values()]

    def _command(self, command: bytes, *words: bytes | float) -> Any:
        found = self.keyspace.call(command, *words)
        if isinstance(found, list):
            return self._lua.table_from(found)
        return False if found is None else found


class _Script:
    """A script that a limiter has registered."""

    def __init__(self, interpreter: _Interpreter, text: str) -> None:
        self.sha = ""
        self._interpreter = interpreter
        self._text = text

    def __call__(self, keys: Sequence[str], args: Sequence[str | int | bytes]) -> Any:
        return self._interpreter.run(self._text, keys, args)


class _AwaitedScript(_Script):
    async def __call__(self, keys: Sequence[str], args: Sequence[str | int | bytes]) -> Any:
        return self._interpreter.run(self._text, keys, args)


class _Memory:
    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._interpreter = _Interpreter(self.clock)


class MemoryRedis(_Memory):
    """Stands for a ``redis.Redis`` under limiters: their scripts run in this process.

    What it holds is its own, and gone with it. Its time is that of ``clock``, which limiters on it
    also wait by unless they have another one. Needs the extra ``local``; raises MissingExtra.
    """

    def register_script(self, script: str) -> _Script:
        """Return a script that can be called, as redis-py does."""
        return _Script(self._interpreter, script)


class AsyncMemoryRedis(_Memory):
    """:class:`MemoryRedis` for limiters that are awaited, as on a client of ``redis.asyncio``."""

    def register_script(self, script: str) -> _AwaitedScript:
        """Return a script whose calls are awaited."""
        return _AwaitedScript(self._interpreter, script)

    async def sleep(self, seconds: float) -> None:
        """Wait by the clock: a clock of the caller's own is asked to sleep, and others may run."""
        if not isinstance(self.clock, SystemClock):
            self.clock.sleep(seconds)
            seconds = 0
        await asyncio.sleep(seconds)


def _pack(layout: bytes, *numbers: float) -> bytes:
    return struct.pack(layout.decode(), *numbers)


def _unpack(layout: bytes, packed: bytes, at: int = 1) -> tuple[float, ...]:
    return struct.unpack_from(layout.decode(), packed, int(at) - 1)


def _size(layout: bytes) -> int:
    return struct.calcsize(layout.decode())
