"""The clock of Redis."""

from __future__ import annotations

import redis


def now_ms(client: redis.Redis) -> int:
    """Return the present by the server's clock, in ms since 1970. Raises redis.RedisError."""
    seconds, micros = client.time()
    return int(seconds) * 1_000 + int(micros) // 1_000
