"""What an error of kombu means, and what to do about it."""

from __future__ import annotations

import socket
import ssl

import redis
from kombu.exceptions import VersionMismatch

from dispatcher.errors import QueueUnavailable
from dispatcher.redis import errors as of_redis

_REFUSALS: dict[object, tuple[str, str]] = {
    403: (
        "the broker refuses the user or the password, or a right of the user",
        "correct them in broker_url, or give the user all rights there",
    ),
    530: (
        "the broker has no such virtual host, or the user lacks the right to it",
        "create it, grant the right, or correct broker_url",
    ),
}
"""Meaning and remedy of AMQP's refusals of a client, by their code."""
_FITTING_VERSIONS = "install 'kombu<5.7', or redis 6.1 or newer"
"""The remedy where kombu refuses the installed redis-py."""


def translated(error: Exception, what: str) -> QueueUnavailable:
    """Return an error of kombu as ours. ``what`` says what failed."""
    if isinstance(error, VersionMismatch):
        return QueueUnavailable(f"{what}: {error}", remedy=_FITTING_VERSIONS)
    if (code := getattr(error, "reply_code", 0)) in _REFUSALS:
        reason, remedy = _REFUSALS[code]
        return QueueUnavailable(reason, remedy=remedy)
    cause = error.__cause__ or error  # kombu puts errors of the line into one of its own
    if isinstance(cause, redis.RedisError):
        helps = of_redis.remedy(cause).replace("redis_url", "broker_url")
        return QueueUnavailable(of_redis.reason(cause), remedy=helps)
    if isinstance(cause, socket.gaierror):
        helps = "correct it in broker_url, or let this machine resolve it"
        return QueueUnavailable("the host name of the broker is unknown", remedy=helps)
    if isinstance(cause, ssl.SSLError):
        helps = "correct broker_url, or the certificate of the broker"
        return QueueUnavailable("TLS with the broker fails", remedy=helps)
    return QueueUnavailable(f"{what} ({type(error).__name__})")
