"""Every Redis key name is made here.

The keys of one shard share a hash tag, so that a script which touches several of them runs on
Redis Cluster as well. The shard of a scope comes from a hash that is the same in every process.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

_WORD = re.compile(rb":[a-z]+")
_WINDOW = re.compile(rb"\A\{[^}]*\}:window(?:@([a-z0-9_.-]+))?:(.*)\Z", re.DOTALL)


@dataclass(frozen=True)
class _PartKeys:
    """The keys of a shard, which is opened, closed and rebuilt as a whole."""

    namespace: str
    shard: int

    _start: ClassVar[str] = ""
    _contents: ClassVar[str]

    @cached_property
    def tag(self) -> str:
        return f"{{{self.namespace}:{self._start}{self.shard}}}"

    @property
    def _prefix(self) -> str:
        return self.tag

    @cached_property
    def epoch(self) -> str:
        """HASH that exists exactly while the part is complete."""
        return epoch_of(self.tag)

    @cached_property
    def rebuild(self) -> str:
        """STRING with the name of the process that rebuilds the part."""
        return f"{self.tag}:rebuild"

    @cached_property
    def checked(self) -> str:
        """STRING: of the rebuild whose stragglers were looked for last, when it opened, ms."""
        return f"{self.tag}:checked"

    @cached_property
    def contents(self) -> str:
        """How the names of its windows or logs begin."""
        return f"{self._prefix}:{self._contents}"


@dataclass(frozen=True)
class ShardKeys(_PartKeys):
    """Of the windows."""

    _contents = "window"

    @cached_property
    def pending(self) -> str:
        """ZSET of reservations that the store has not confirmed.

        Member: that of its window, then the key of the window; score: when reserved, ms.
        """
        return pending_of(self._prefix)

    def window(self, scope: str, kind: str = "") -> str:
        """ZSET of one scope's reservations; member: message id and tail, score: send_at, ms."""
        return f"{self.contents}@{kind}:{scope}" if kind else f"{self.contents}:{scope}"

    @cached_property
    def reaches(self) -> str:
        """HASH of windows that reach further back than their kind; value: how far, ms."""
        return f"{self._prefix}:reaches"

    def duplicates(self, idempotency_key: str) -> str:
        """HASH of the submits under way with one idempotency key."""
        digest = hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]
        return f"{self._prefix}:duplicates:{digest}"


@dataclass(frozen=True)
class PermitKeys(_PartKeys):
    """Of the permit logs."""

    _start = "permits:"
    _contents = "log"

    def scope(self, scope: str) -> str:
        """ZSET of one scope's permits; member: permit id, score: time of the send, ms."""
        return f"{self.contents}:scope:{scope}"

    def channel(self, channel: str) -> str:
        return f"{self.contents}:channel:{channel}"

    def further(self, kind: str, name: str) -> str:
        return f"{self.contents}:of:{kind}:{name}"

    @cached_property
    def room(self) -> str:
        """ZSET of logs in which room was made; score: permits given back while messages waited."""
        return room_of(self.tag)

    def closing(self, channel: str) -> str:
        """Return the STRING with the instant at which a channel opens again, ms."""
        return f"{self.tag}:closing:{channel}"


@dataclass(frozen=True)
class LooseKeys:
    """The keys that a rebuild does not touch: no part has their tags."""

    namespace: str

    def signs(self, kind: str) -> str:
        """ZSET of processes or duties; member: name, score: last sign of life, ms."""
        return f"{{{self.namespace}@signs}}:{kind}"

    @cached_property
    def items_rejected(self) -> str:
        """STRING with the number of rejected items of the broker; expires a day after the last."""
        return f"{{{self.namespace}@signs}}:items_rejected"

    def refusals(self, hour: int) -> str:
        """HASH of one hour since 1970: how many refusals; field: step of the wait, kind, quota."""
        return f"{{{self.namespace}@refusals}}:hour:{hour}"

    @cached_property
    def last_refusals(self) -> str:
        """LIST of the last refusals, newest first, as JSON."""
        return f"{{{self.namespace}@refusals}}:last"

    @cached_property
    def events(self) -> str:
        """STREAM of the last transitions."""
        return f"{{{self.namespace}@events}}:stream"


@dataclass(frozen=True)
class PlanKeys(ShardKeys):
    """The keys of a plan: copies of the windows of one shard, without real reservations."""

    plan: str

    @property
    def _prefix(self) -> str:
        return f"{self.tag}:plan:{self.plan}"

    @cached_property
    def alive(self) -> str:
        """STRING that is there as long as the copies are."""
        return f"{self._prefix}:alive"


@dataclass(frozen=True)
class LimiterKeys:
    """The keys of limiters. Those of one caller's key share a hash tag; with ``tag`` all do.

    Neither ``prefix`` nor ``tag`` nor the label of a limit has a colon, a brace or an ``@``, and no
    label is ``permits``. So no two of these names are the same, whatever callers' keys hold.
    """

    prefix: str
    tag: str | None = None

    def hash_tag(self, key: str) -> str:
        return f"{{{self.prefix}:{key}}}" if self.tag is None else f"{{{self.prefix}@{self.tag}}}"

    def state(self, label: str, key: str) -> str:
        start = f"{self.hash_tag(key)}:{label}"
        return start if self.tag is None else f"{start}:{key}"

    def permits(self, digest: str, key: str) -> tuple[str, str]:
        """Return the names of the HASHes of permits; field: permit id, value: count and time."""
        start = f"{self.hash_tag(key)}:permits:{digest}"
        return f"{start}:0", f"{start}:1"


def shard_of(name: str, shards: int) -> int:
    """Return the shard of a scope or a channel: CRC-32 of its UTF-8 bytes, modulo ``shards``."""
    return zlib.crc32(name.encode()) % shards


def permit_parts(namespace: str, shards: int) -> tuple[PermitKeys, ...]:
    """Return the keys of the permit logs: scopes and channels lie in the shards of their names."""
    return tuple(PermitKeys(namespace, shard) for shard in range(shards))


def all_of(namespace: str) -> str:
    """Glob that matches every key of a namespace (whose characters mean nothing in a glob)."""
    return f"{{{namespace}:*"


class LogKeys(NamedTuple):
    """A permit log, and ZSETs beside it.

    ``line``: the messages that wait for it; score: when they come back, ms. Where it gives turns,
    ``order``: the same messages; score: by which they are served; ``shares``: how far each class
    and each share of that order has come.
    """

    log: str
    line: str
    order: str
    shares: str

    @classmethod
    def of(cls, log: str) -> LogKeys:
        return cls(
            log, *(log.replace("}", f"}}:{word}", 1) for word in ("line", "order", "shares"))
        )


def room_of(log: str) -> str:
    """ZSET of logs in which room was made, in the part with this log or tag."""
    return log.partition("}")[0] + "}:room"


def epoch_of(tag: str) -> str:
    return f"{tag}:epoch"


def pending_of(tag: str) -> str:
    return f"{tag}:pending"


def tag_of(name: bytes) -> str:
    return name.partition(b"}")[0].decode() + "}"


def start_of(name: bytes) -> bytes:
    """Return the beginning of the name of a window or a log: the ``contents`` of its part."""
    tag, _, rest = name.partition(b"}")
    word = _WORD.match(rest)
    return tag + b"}" + (word[0] if word else b"")


def scope_of(window: bytes) -> tuple[str, str] | None:
    """Return kind and name of the scope that a window belongs to; None for any other key."""
    match = _WINDOW.match(window)
    return ((match[1] or b"").decode(), match[2].decode("utf-8", "replace")) if match else None


def scope_kind_of(window: bytes) -> str:
    return (scope_of(window) or ("", ""))[0]
