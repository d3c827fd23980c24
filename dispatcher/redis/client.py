"""Makes the client of the Redis of the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from dispatcher.errors import InvalidSettings

_SECONDS = 1.0
_RETRIES = 1


def connect_redis(url: str, *, on_connect: Callable[[Any], None] | None = None) -> redis.Redis:
    """Return a client with a timeout of a second that retries a call once. Raises InvalidSettings.

    It calls ``on_connect`` with each new connection before the first command.
    """
    over_network: dict[str, Any] = {
        "socket_connect_timeout": _SECONDS,
        "socket_keepalive": True,
    }
    if url.startswith("unix:"):
        over_network = {}
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            redis_connect_func=on_connect,
            socket_timeout=_SECONDS,
            **over_network,
            retry=Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.1), _RETRIES),
        )
    except ValueError:
        raise InvalidSettings(
            "redis_url", "cannot be read", "redis://…, rediss://… or unix://…"
        ) from None
