"""What clients ask for on each channel, and what can be read out of it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

EMAIL, WEBHOOK = "email", "webhook"
"""Carried by the transports that ship, to receivers that speak their protocols."""
CHANNELS: Mapping[str, int] = {"mail": 3, "text": 3, EMAIL: 1, WEBHOOK: 1}
"""How often each comes beside the others."""
CANARY = "canary-in-a-body"
PERSON = "canary-person"
"""What no log may tell."""

TENANTS = ("acme", "ben", "cleo")
PRIORITIES = (-20, 0, 60)
QUOTAS_OF_TENANTS = "12/2 second, 4 kept for priority >= 50"
LOOSEST_QUOTAS = "20/2 second, 4 kept for priority >= 50"
OWN_QUOTAS = (None, LOOSEST_QUOTAS, "6/2 second")
"""What tenants have of their own by turns, and what all of that is within."""
OWN_LIMITS: Mapping[str, tuple[str | None, ...]] = {
    "acme": ("5/second", "3/second"), "ben": (None, "3/second"),
}  # fmt: skip
LOOSEST_LIMITS = {"acme": "5/second"}
"""What tenants have from the start that always have limits."""

SERIES = [f"series:{number}" for number in range(100)]
CHANGED_SERIES = SERIES[60:]
"""Those that callers change, pause, resume and remove."""

_PEOPLE: Mapping[str, int] = {"mail": 70, "text": 70, EMAIL: 20, WEBHOOK: 20}


def people_of(channel: str) -> list[str]:
    at = "@soak.example" if channel == EMAIL else ""
    return [f"{PERSON}-{number}{at}" for number in range(_PEOPLE[channel])]


def body_of(
    channel: str, tag: str, *, text: str = CANARY, changed: int | None = None
) -> dict[str, Any]:
    if channel == EMAIL:
        return {"subject": tag, "text": text if changed is None else f"{text} {changed}"}
    body = {"tag": tag, "secret": text}
    return body if changed is None else body | {"changed": changed}


def tag_of(body: Mapping[str, Any]) -> str | None:
    return body.get("tag") or body.get("subject")


def digest_of(channel: str, recipient: str, body: Mapping[str, Any]) -> str:
    text = json.dumps([channel, recipient, body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
