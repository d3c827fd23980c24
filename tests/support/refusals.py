"""Every bad input of the front door, as a table: what is asked, and which field is at fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import InvalidDraft, InvalidSendTime, InvalidValue, Settings, UnknownChannel
from tests.support.house import FAR

CANARY = "canary-body-4711"
SOON = FAR + timedelta(minutes=1)
_LONG = 256


def settings_nowhere(nowhere: Path, **more: Any) -> Settings:
    """Return settings whose servers are nowhere: whatever touches one of them is Unavailable."""
    return Settings.load(
        redis_url=f"unix://{nowhere}/redis.sock",
        broker_url=f"redis+socket://{nowhere}/redis.sock",
        database_url=f"sqlite:///{nowhere}/missing/store.db",
        data_dir=nowhere,
        **more,
    )


def refuses(call: Callable[..., object], *given: object, field: str) -> None:
    """Fail unless this call names the field that is at fault."""
    with pytest.raises(InvalidValue) as refused:
        call(*given)
    assert refused.value.field == field, given


@dataclass(frozen=True)
class Bad:
    """A call of the dispatcher that must be refused, and how."""

    field: str
    error: type[InvalidValue]
    method: str = "submit"
    positional: tuple[Any, ...] = ()
    asked: dict[str, Any] = dataclasses.field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        if self.method != "submit":
            return self.asked
        good = {"channel": "memory", "recipient": "ada", "body": {"text": CANARY}, "send_at": SOON}
        return good | self.asked


def _deep(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(levels - 1):
        body = {"in": body}
    return body


_TEXTS: dict[str, Any] = {
    "empty": "",
    "too long": "x" * _LONG,
    "newline": "ada\n",
    "nul": "a\0da",
    "line separator": "a\u2028da",
    "bidi override": "a\u202eda",
    "zero width": "a\u200bda",
    "lone surrogate": "a\ud800da",
    "space before": " ada",
    "space after": "ada ",
    "escape": "a\x1bda",
    "bytes": b"ada",
    "number": 4711,
}

_BODIES: dict[str, tuple[Any, str]] = {
    "none": (None, "body"),
    "text": ("text", "body"),
    "too large": ({"text": "x" * 65_536}, "body"),
    "too large in utf-8": ({"text": "é" * 32_768}, "body"),
    "too deep": (_deep(33), "body"),
    "too deep in a list": ({"a": [_deep(32)]}, "body"),
    "far too deep": (_deep(900), "body"),
    "nul": ({"text": "a\0b"}, "body.text"),
    "nul in a key": ({"a\0b": 1}, "body"),
    "surrogate": ({"a": [{"b": "\ud800"}]}, "body.a[0].b"),
    "surrogate in a key": ({"\udfff": 1}, "body"),
    "nan": ({"n": float("nan")}, "body.n"),
    "infinity": ({"n": -float("inf")}, "body.n"),
    "number as key": ({"a": {1: 2}}, "body.a"),
    "complex number": ({"n": 1j}, "body.n"),
    "datetime": ({"when": FAR}, "body.when"),
    "endless number": ({"n": 10**5_000}, "body"),
}

_LOCAL = datetime(2100, 1, 1, 12)  # noqa: DTZ001 - naive on purpose
_TIMES: dict[str, tuple[dict[str, Any], str]] = {
    "naive datetime": ({"send_at": _LOCAL}, "send_at"),
    "a millisecond past": ({"send_at": FAR - timedelta(milliseconds=1)}, "send_at"),
    "too far from now": ({"send_at": None, "send_in": timedelta(days=1_831)}, "send_in"),
    "gap": ({"send_at": "2100-03-28T02:30", "zone": "Europe/Berlin"}, "send_at"),
    "offset and unknown zone": ({"zone": "Europe/Atlantis"}, "zone"),
    "both": ({"send_in": timedelta(minutes=1)}, "send_at"),
    "neither": ({"send_at": None}, "send_at"),
    "expired at the send time": ({"expires_at": SOON}, "expires_at"),
    "expiry in a gap": (
        {"expires_at": "2100-03-28T02:30", "send_at": "2100-01-01T13:00", "zone": "Europe/Berlin"},
        "expires_at",
    ),
    "latest before": (
        {"on_conflict": "shift", "latest": SOON - timedelta(milliseconds=1)},
        "latest",
    ),
}

_AFTERS: dict[str, tuple[dict[str, Any], str]] = {
    "past": ({"after": FAR - timedelta(milliseconds=1)}, "after"),
    "too far": ({"after": FAR + timedelta(days=5 * 366, milliseconds=1)}, "after"),
    "unknown zone": ({"after": "2100-01-01T12:00", "zone": "Mars"}, "zone"),
}

_CHANNELS = {"unknown": "fax", "empty": "", "other case": "Memory", "list": ["memory"]}
_IDS = {"empty": "", "text": "no-id", "number": 4711, "none": None, "bytes": b"x" * 16}


_EXPIRE_AFTERS: dict[str, dict[str, Any]] = {
    "zero": {"expire_after": timedelta(0)},
    "negative": {"expire_after": -timedelta(seconds=1)},
    "text": {"expire_after": "1 hour"},
    "number": {"expire_after": 3_600},
    "beyond the calendar": {"expire_after": timedelta.max},
    "with expires_at": {"expire_after": timedelta(hours=1), "expires_at": SOON + timedelta(days=1)},
}


def _bad_drafts() -> Iterator[tuple[str, Bad]]:
    for name, channel in _CHANNELS.items():
        yield f"channel {name}", Bad("channel", UnknownChannel, asked={"channel": channel})
    for name, value in _TEXTS.items():
        for field in ("recipient", "scope", "campaign", "idempotency_key"):
            yield f"{field} {name}", Bad(field, InvalidDraft, asked={field: value})
    yield "recipient none", Bad("recipient", InvalidDraft, asked={"recipient": None})
    for name, (body, where) in _BODIES.items():
        yield f"body {name}", Bad(where, InvalidDraft, asked={"body": body})
    for name, (asked, where) in _TIMES.items():
        yield f"time {name}", Bad(where, InvalidSendTime, asked=asked)
    for field in ("on_conflict", "on_unknown"):
        for word in ("Shift", "", "drop", 1, ["hold"]):
            yield f"{field} {word!r}", Bad(field, InvalidDraft, asked={field: word})
    yield "on_conflict none", Bad("on_conflict", InvalidDraft, asked={"on_conflict": None})
    for name, asked in _EXPIRE_AFTERS.items():
        yield f"expire_after {name}", Bad("expire_after", InvalidSendTime, asked=asked)
    priorities = (-101, 101, 10**5_000, 1.5, True, "high", "50", [50])
    for number, priority in enumerate(priorities):
        asked = {"priority": priority}
        yield f"priority {number}", Bad("priority", InvalidDraft, asked=asked)
        asked |= {"recipient": "ada"}
        yield f"slot {number}", Bad("priority", InvalidDraft, "next_slot", asked=asked)
        asked = {"priority": priority}
        yield f"many {number}", Bad("priority", InvalidDraft, "update_many", ([],), asked=asked)
    yield "latest without shift", Bad("latest", InvalidDraft, asked={"latest": SOON})


def _bad_questions() -> Iterator[tuple[str, Bad]]:
    for name, value in _TEXTS.items():
        yield f"next_slot {name}", Bad("scope", InvalidDraft, "next_slot", asked={"scope": value})
    for name, (asked, where) in _AFTERS.items():
        bad = Bad(where, InvalidSendTime, "next_slot", asked={"recipient": "ada"} | asked)
        yield f"next_slot {name}", bad
    yield "next_slot of nobody", Bad("recipient", InvalidDraft, "next_slot")
    for method in ("get", "attempts", "cancel", "release", "drop"):
        for name, value in _IDS.items():
            yield f"{method} {name}", Bad("id", InvalidDraft, method, (value,))
    for status in ("lost", "", "SENT", 1, ["sent"]):
        bad = Bad("status", InvalidDraft, "list", asked={"status": status})
        yield f"list status {status!r}", bad
    for most in (0, -1, 10_001, "5", 2.5, None):
        for method in ("list", "held"):
            bad = Bad("limit", InvalidDraft, method, asked={"limit": most})
            yield f"{method} limit {most!r}", bad


BAD = [pytest.param(case, id=name) for name, case in (*_bad_drafts(), *_bad_questions())]
