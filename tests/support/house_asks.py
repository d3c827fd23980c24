"""What is asked of a house in stories, and by what settings it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.calendar_model import Item, text_of
from tests.support.house_model import Ask

STEP = 30_000
"""Half a minute, ms."""
QUIET: Item = (frozenset(range(7)), 11 * 60 + 20, 11 * 60 + 40)
BREAK: Item = (frozenset({4, 5}), 16 * 60 + 50, 17 * 60)
SETTINGS: dict[str, Any] = {
    "quotas": "1/minute, 4/10 minute",
    "channels": {
        "memory": {
            "transport": "memory",
            "quotas": "5/10 minute, 12/day in Asia/Kathmandu",
            "recipient_quotas": "3/hour in local",
            "quiet_hours": text_of(QUIET),
        },
        "console": {"transport": "console"},
    },
    "scopes": {"tenant": {"quotas": "2/5 minute, 6/hour in Europe/Berlin"}},
    "reconcile_grace": 1_800,
}

offsets = st.one_of(
    st.integers(2, 10).map(lambda steps: steps * STEP),
    st.integers(2, 10).map(lambda steps: steps * STEP),
    st.integers(2, 130).map(lambda steps: steps * STEP),
    st.integers(60_000, 900_000),
)
rooms = st.sampled_from([0, 1, 60_000, 600_000, 7_200_000])
asks = st.builds(
    Ask,
    recipient=st.sampled_from(["ada", "ada", "ada", "ben"]),
    channel=st.sampled_from(["memory", "memory", "console"]),
    tenant=st.sampled_from([None, "acme", "acme"]),
    zone=st.sampled_from([None, None, "Asia/Kathmandu"]),
    quiet=st.sampled_from([None, None, None, "none", BREAK]),
    offset=offsets,
    room=st.one_of(st.none(), rooms),
    life=st.sampled_from([None, None, None, 1, 300_000]),
    key=st.sampled_from([None, None, None, None, "k1", "k2"]),
    text=st.sampled_from(["hello", "hello", "hello", "goodbye"]),
)


def named(asks: Sequence[Ask]) -> list[Ask]:
    """Return the asks of which no earlier one has the same key."""
    seen: set[str | None] = {None}
    found = []
    for ask in asks:
        if ask.key is None or ask.key not in seen:
            found.append(ask)
        seen.add(ask.key)
    return found
