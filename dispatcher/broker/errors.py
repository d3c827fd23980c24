"""What an error of kombu means, and what to do about it."""

from __future__ import annotations

from kombu.exceptions import VersionMismatch

from dispatcher.errors import QueueUnavailable

_REFUSALS: dict[object, tuple[str, str]] = {
    403: (
        "the broker refuses: wrong user or password, or no right",
        "correct broker_url, or give its user rights to its virtual host",
    ),
    530: (
        "the broker refuses: no such virtual host, or no right to it",
        "create the virtual host and give the user rights to it, or correct broker_url",
    ),
}
"""AMQP's refusals of a client: meaning and remedy."""
_FITTING_VERSIONS = "install 'kombu<5.7', or redis 6.1 or newer"
"""The remedy where kombu refuses the installed redis-py."""


def translated(error: Exception, what: str) -> QueueUnavailable:
    """Return an error of kombu as ours. ``what`` says what failed."""
    if isinstance(error, VersionMismatch):
        return QueueUnavailable(f"{what}: {error}", remedy=_FITTING_VERSIONS)
    reason, remedy = _REFUSALS.get(
        getattr(error, "reply_code", None), (f"{what} ({type(error).__name__})", "")
    )
    return QueueUnavailable(reason, remedy=remedy)
