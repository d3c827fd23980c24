"""Every Redis key name is made here.

The keys of one shard share a hash tag, so that a script which touches several of them runs on
Redis Cluster as well. The shard of a scope comes from a hash that is the same in every process.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard of the windows."""

    namespace: str
    shard: int

    @property
    def tag(self) -> str:
        """Hash tag that all keys of the shard begin with."""
        return f"{{{self.namespace}:{self.shard}}}"

    @property
    def epoch(self) -> str:
        """HASH that exists exactly while the shard's windows are complete."""
        return f"{self.tag}:epoch"

    @property
    def rebuild(self) -> str:
        """STRING that names who is rebuilding the shard."""
        return f"{self.tag}:rebuild"

    @property
    def pending(self) -> str:
        """ZSET of reservations that the store has not confirmed.

        Member: message id, then the key of its window; score: when reserved, ms.
        """
        return f"{self.tag}:pending"

    @property
    def all_windows(self) -> str:
        """Glob that matches every window of the shard."""
        escaped = self.tag.replace("[", "\\[").replace("?", "\\?").replace("*", "\\*")
        return f"{escaped}:window:*"

    def window(self, scope: str) -> str:
        """ZSET of one scope's reservations; member: message id, score: send_at, ms."""
        return f"{self.tag}:window:{scope}"

    def twins(self, idempotency_key: str) -> str:
        """HASH of the submits under way with one idempotency key."""
        digest = hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]
        return f"{self.tag}:twins:{digest}"


def shard_of(scope: str, shards: int) -> int:
    """Return the shard of ``scope``: CRC-32 of its UTF-8 bytes, modulo ``shards``."""
    return zlib.crc32(scope.encode()) % shards


def scope_permits(namespace: str, scope: str) -> str:
    """ZSET of one scope's permits."""
    return f"{{{namespace}:permits}}:scope:{scope}"


def channel_permits(namespace: str, channel: str) -> str:
    """ZSET of one channel's permits."""
    return f"{{{namespace}:permits}}:channel:{channel}"
