"""Errors over HTTP: a problem of RFC 9457 for each class of errors; headers of limits."""

from __future__ import annotations

import inspect
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from dispatcher import errors
from dispatcher.errors import DispatcherError, InvalidValue
from dispatcher.limiters import Algorithm, AsyncLimiter, Decision, Limiter
from dispatcher.limiters.limit_set import Keys, check_permits, texts_of
from dispatcher.redis.errors import is_pool_full

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
KeyOf: TypeAlias = str | Callable[[RequestT], Keys | None]
"""Whose permits a request needs; None for a request that is not limited."""

MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "urn:problem-type:dispatcher:"

_STATUSES: Mapping[type[DispatcherError], int] = {
    errors.DispatcherError: 500,
    errors.InvalidValue: 422,
    errors.InvalidSettings: 500,
    errors.Suppressed: 409,
    errors.SlotRefused: 409,
    errors.BatchRefused: 409,
    errors.IdempotencyConflict: 422,
    errors.MessageNotFound: 404,
    errors.MessageChanged: 412,
    errors.TooLate: 409,
    errors.LimitReached: 429,
    errors.Unavailable: 503,
    errors.DuplicateUnderWay: 409,
    errors.OutcomeUnknown: 500,
}
"""The status of the answer for a class of errors: that of its nearest base here."""

_SERVER_ERROR = 500
_WAIT = timedelta(seconds=1)
"""How long a client waits where an error does not say it."""
_OF_RECIPIENTS = frozenset({"scope", "conflicting"})
"""Data of errors that may name a recipient, or messages of others."""
_OF_CALLERS = frozenset({"message_id", "retry_after"})
"""Data of errors of servers that a caller may have."""


def problem_kind_of(error: type[DispatcherError]) -> str:
    """Return the last part of the type of a problem: ``quota-exceeded``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", error.__name__).lower()


def problem_of(error: DispatcherError, *, whole: bool = True) -> dict[str, Any]:
    """Return an error as a problem, with its data.

    Unless ``whole``, it names no scope, which may be a recipient, no messages of others, no servers
    and no settings: then its detail is the first sentence of the documentation of its class.
    """
    data = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    detail = str(error)
    if not whole:
        public = data
        if status_of(error) >= _SERVER_ERROR or isinstance(error, errors.Unavailable):
            public = {name: value for name, value in data.items() if name in _OF_CALLERS}
        elif isinstance(error, errors.IdempotencyConflict):
            public = {}
        elif not _OF_RECIPIENTS.isdisjoint(data):
            public = {name: value for name, value in data.items() if name not in _OF_RECIPIENTS}
        if public is not data:
            data, detail = public, _sentence_of(type(error))
    if isinstance(error, errors.OutcomeUnknown):
        asks = "ask for message_id, or repeat the call with the same Idempotency-Key"
        detail = f"{detail.removesuffix('.')}; {asks}"
    if "status" in data:  # a message's: a problem has one of its own
        data["message_status"] = data.pop("status")
    wait = data.pop("retry_after", None)
    if isinstance(wait, timedelta) and wait != timedelta.max:
        data["retry_after_seconds"] = wait.total_seconds()
    return problem(status_of(error), problem_kind_of(type(error)), detail, data)


def _sentence_of(kind: type[DispatcherError]) -> str:
    """Return the first line of the documentation of an error of ours, or of its nearest base."""
    ours = next(base for base in kind.__mro__ if base.__module__ == errors.__name__)
    return (ours.__doc__ or "").partition("\n")[0]


def status_of(error: DispatcherError) -> int:
    if isinstance(error, errors.StoreUnavailable) and error.refused:
        return 422
    return next(_STATUSES[base] for base in type(error).__mro__ if base in _STATUSES)


def headers_of(error: DispatcherError) -> dict[str, str]:
    """Return when to call again, and the policy that :func:`keeping_policy` saw refused."""
    wait = getattr(error, "retry_after", None)
    if not isinstance(wait, timedelta):
        waits = isinstance(error, errors.Unavailable) and status_of(error) != 422  # noqa: PLR2004
        wait = _WAIT if waits and not isinstance(error, errors.OutcomeUnknown) else None
    headers = {}
    if wait is not None and wait != timedelta.max:
        headers["Retry-After"] = str(max(1, _seconds(wait)))
    if isinstance(error, errors.LimitReached):
        headers |= vars(error).get("_policy", {})
        headers["RateLimit"] = _rate_limit(error.limit, 0, error.retry_after)
    return headers


def limit_headers(
    limits: Sequence[Algorithm], decision: Decision, *, name: str = ""
) -> dict[str, str]:
    """Return the headers of draft-ietf-httpapi-ratelimit-headers-10 for a decision.

    ``RateLimit-Policy`` names all ``limits`` that count, ``RateLimit`` what the deciding one has
    left. A single limit may have another ``name``.
    """
    names = [name] if name and len(limits) == 1 else texts_of(limits)
    headers = _policy(limits, names)
    if decision.limit or not decision:
        left = _rate_limit(names[decision.position], decision.remaining, decision.retry_after)
        headers["RateLimit"] = left
    return headers


def _policy(limits: Sequence[Algorithm], names: Sequence[str]) -> dict[str, str]:
    policies = [
        f"{_quoted(text)};q={limit.most}"
        + (f";w={max(1, limit.length_ms // 1_000)}" * bool(limit.length_ms))
        for text, limit in zip(names, limits, strict=True)
        if limit.most
    ]
    return {"RateLimit-Policy": ", ".join(policies)} if policies else {}


@contextmanager
def keeping_policy(limiter: Limiter | AsyncLimiter) -> Iterator[None]:
    """Keep the policy of a limiter that is asked for a request, for the headers of a refusal.

    The request goes on where Redis does not answer, unless the limiter is to raise then.
    """
    try:
        yield
    except errors.LimitReached as refusal:
        vars(refusal)["_policy"] = _policy(limiter.limits, texts_of(limiter.limits))
        raise
    except errors.LimitersUnavailable as error:
        if limiter.on_error == "raise" or is_pool_full(error):
            raise


def check_limited(
    limiter: object, kind: type[Limiter] | type[AsyncLimiter], key: object, n: int
) -> None:
    """Raise InvalidValue, before any request, for another kind of limiter, or a wrong key or n."""
    if not isinstance(limiter, Limiter | AsyncLimiter) or not isinstance(limiter, kind):
        client = "redis.asyncio" if kind is AsyncLimiter else "redis"
        raise InvalidValue("limiter", errors.kind_of(limiter), f"a limiter on a client of {client}")
    accepted = "a text, or a function without async that returns one"
    if isinstance(key, str):
        limiter._limit_set.keys_of(key)
    elif not callable(key):
        raise InvalidValue("key", errors.kind_of(key), accepted)
    elif any(map(inspect.iscoroutinefunction, (key, type(key).__call__))):
        raise InvalidValue("key", "an async function", accepted)
    check_permits(n, limiter.limits)


def _rate_limit(name: str, left: int, wait: timedelta) -> str:
    text = f"{_quoted(name)};r={left}"
    return f"{text};t={_seconds(wait)}" if timedelta(0) < wait < timedelta.max else text


def _quoted(text: str) -> str:
    """Return a string of structured fields (RFC 9651)."""
    return '"{}"'.format(text.replace("\\", r"\\").replace('"', r"\""))


def _seconds(wait: timedelta) -> int:
    return math.ceil(wait.total_seconds())


def answer_to(error: DispatcherError) -> tuple[str, int, dict[str, str]]:
    """Return body, status and headers; the text of a server's error is logged and not answered."""
    answer = problem_of(error, whole=False)
    status: int = answer["status"]
    if status >= _SERVER_ERROR:
        cause = error if status == _SERVER_ERROR else None
        log.error("answered with %d: %s", status, error, exc_info=cause)
    return json.dumps(answer), status, {"Content-Type": MEDIA_TYPE, **headers_of(error)}


def problem(
    status: int, kind: str, detail: str, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    title = kind.replace("-", " ")
    base = {"type": _TYPE_PREFIX + kind, "title": title, "status": status, "detail": detail}
    return {**{name: _plain(value) for name, value in (data or {}).items()}, **base}


def _plain(value: object) -> Any:
    # Not by pydantic: 2.12 writes instants as numbers where it writes lengths as numbers.
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID | str):
        return str(value)
    if isinstance(value, Iterable):
        return [_plain(part) for part in value]
    return value
