"""Makes the clients of the Redis that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from dispatcher.errors import InvalidSettings

_SECONDS = 1.0
_RETRIES = 1


def connect_redis(url: str, *, greet: Callable[[Any], None] | None = None) -> redis.Redis:
    """Return a client that waits a second and repeats a call once. Raises InvalidSettings.

    ``greet`` is called with each new connection before it carries anything.
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
            redis_connect_func=greet,
            socket_timeout=_SECONDS,
            **over_network,
            retry=Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.1), _RETRIES),
        )
    except ValueError:
        raise InvalidSettings(
            "redis_url", "cannot be read", "redis://…, rediss://… or unix://…"
        ) from None
