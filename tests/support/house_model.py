"""What a whole house must answer and hold, whatever is asked of it in whatever order.

The model knows three things: what the store has accepted, what the windows count (also places whose
process died before it told the store), and which shards are closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from hypothesis import strategies as st

from dispatcher.errors import (
    IdempotencyConflict,
    InvalidSendTime,
    ReservationsUnavailable,
    SlotRefused,
)
from dispatcher.message import Draft, Message
from dispatcher.scope import Scope, counted, own_scope
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.calendar_model import Item, text_of
from tests.support.house import House, Windows, key_of, shard
from tests.support.model import Ledger, Wish

Expected = UUID | int | type[Exception]
"""The message that is there already, the time of a new one, or the error."""

FAR_AWAY = 10**14


class Ask(NamedTuple):
    """A draft in the words of the model; times are offsets in ms from where the story begins."""

    recipient: str
    channel: str
    tenant: str | None
    zone: str | None
    quiet: Item | str | None
    offset: int
    room: int | None
    life: int | None
    key: str | None
    text: str

    @property
    def quiet_hours(self) -> str | None:
        return text_of(self.quiet) if isinstance(self.quiet, tuple) else self.quiet

    def draft(self, start: int) -> Draft:
        asked = start + self.offset
        shift: dict[str, Any] = {}
        if self.room is not None:
            shift = {"on_conflict": "shift", "latest": from_ms(asked + self.room)}
        return Draft(
            channel=self.channel,
            recipient=self.recipient,
            body={"text": self.text},
            send_at=from_ms(asked),
            zone=self.zone,
            scopes={"tenant": self.tenant} if self.tenant else None,
            quiet_hours=self.quiet_hours,
            expires_at=None if self.life is None else from_ms(asked + self.life),
            idempotency_key=self.key,
            **shift,
        )

    @property
    def content(self) -> tuple[object, ...]:
        """What a repeated call with the same key must repeat."""
        return (
            self.recipient, self.channel, self.tenant, self.zone, self.quiet_hours, self.offset,
            self.life, self.text,
        )  # fmt: skip


Places = dict[str, list[tuple[bytes, int]]]
"""By the name of a window: ids of messages and their times in ms, in order."""


def places_of(windows: Windows) -> Places:
    """Return what windows hold, whatever the tails of its moves."""
    return {
        name: sorted((member[:16], at) for member, at in members.items())
        for name, members in windows.items()
    }


@dataclass
class Accepted:
    """A message as the store must have it."""

    ask: Ask
    wish: Wish
    at: int
    expires: int | None
    text: str
    cancelled: bool = False
    released: bool = False
    is_held: bool = False
    is_dropped: bool = False
    is_tried: bool = False

    @property
    def may_change(self) -> bool:
        return not (self.cancelled or self.is_held or self.is_dropped)


@dataclass
class Orphan:
    """A place whose submit died before it stored its message."""

    message_id: UUID
    ask: Ask


@dataclass
class HouseModel:
    """Says what the house must answer; the test tells it what happened."""

    house: House
    channel_quiet: dict[str, tuple[Item, ...]]
    start: int
    ledger: Ledger = field(init=False)
    stored: dict[UUID, Accepted] = field(default_factory=dict)
    keys: dict[str, UUID] = field(default_factory=dict)
    orphans: dict[tuple[str, tuple[int, UUID | None]], Orphan] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    changed: set[Scope] = field(default_factory=set)
    """Scopes whose quotas were others once: what is booked may break those of now."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.house.settings.quotas_of)

    @property
    def now(self) -> int:
        return to_ms(self.house.clock.now())

    def wish(self, ask: Ask) -> Wish:
        scopes = counted(
            self.house.settings.quotas_of,
            scope=ask.recipient,
            channel=ask.channel,
            scopes={"tenant": ask.tenant} if ask.tenant else {},
        )
        items = self.channel_quiet.get(ask.channel, ())
        if ask.quiet is not None:
            items = (ask.quiet,) if isinstance(ask.quiet, tuple) else ()
        return Wish(scopes, ask.zone or self.house.settings.zone, items)

    def is_closed(self, wish: Wish) -> bool:
        return any(shard(self.house, scope) in self.closed for scope in wish.scopes)

    def expected(self, ask: Ask) -> Expected:
        if ask.key in self.keys and self.superseded(ask) is None:
            known = self.stored[self.keys[ask.key]]
            return self.keys[ask.key] if known.ask.content == ask.content else IdempotencyConflict
        asked, wish = self.start + ask.offset, self.wish(ask)
        if asked < self.now:
            return InvalidSendTime
        if self.is_closed(wish):
            return ReservationsUnavailable
        orphan = self.orphans.get(self.duplicates(ask))
        if orphan is not None:
            same = orphan.ask.content == ask.content
            return self.place_of(orphan.message_id) if same else IdempotencyConflict
        return self.slot(wish, asked, self.latest(ask))

    def superseded(self, ask: Ask) -> UUID | None:
        """Return the cancelled message, surely unsent, whose key a submit takes over."""
        known = self.keys.get(ask.key or "")
        if known is None or not self.stored[known].cancelled or self.stored[known].is_tried:
            return None
        return known

    def duplicates(self, ask: Ask) -> tuple[str, tuple[int, UUID | None]]:
        """Return what those submits share that see each other by their key."""
        home = shard(self.house, own_scope(ask.recipient))
        return ask.key or "", (home, self.superseded(ask))

    def latest(self, ask: Ask) -> int:
        asked = self.start + ask.offset
        if ask.room is None:
            return asked
        return asked + (ask.room if ask.life is None else min(ask.room, ask.life - 1))

    def slot(
        self, wish: Wish, asked: int, latest: int, without: UUID | None = None
    ) -> int | type[Exception]:
        found = self.ledger.slot(wish, asked, without=without, most=latest)
        return found if found <= latest else SlotRefused

    def place_of(self, message_id: UUID) -> int:
        booked = self.ledger.places.values()
        [at] = {members[message_id] for members in booked if message_id in members}
        return at

    def accept(self, ask: Ask, message: Message) -> None:
        at = to_ms(message.send_at)
        wish = self.wish(ask)
        expires = None if ask.life is None else self.start + ask.offset + ask.life
        self.stored[message.id] = Accepted(ask, wish, at, expires, ask.text)
        self.ledger.book(wish.scopes, message.id, at)
        if ask.key is not None:
            self.orphans.pop(self.duplicates(ask), None)
            self.keys[ask.key] = message.id

    def book_second(self, message_id: UUID, second: UUID, at: int) -> None:
        """Note that a move that died has booked a second place for a message."""
        self.ledger.book(self.stored[message_id].wish.scopes, second, at)
        self.ledger.holders[second] = message_id

    def lose(self, shards: set[int]) -> None:
        """Note that the windows of these shards are filled from the store again."""
        for scope in list(self.ledger.places):
            if shard(self.house, scope) in shards:
                self.ledger.places[scope] = self.promised(scope)
        self.forget_second()

    def forget_second(self) -> None:
        left = {member for members in self.ledger.places.values() for member in members}
        self.ledger.holders = {
            place: holder for place, holder in self.ledger.holders.items() if place in left
        }

    def promised(self, scope: Scope) -> dict[UUID, int]:
        return {
            message_id: accepted.at
            for message_id, accepted in self.stored.items()
            if scope in accepted.wish.scopes and not accepted.cancelled
        }

    def release_cancelled(self) -> None:
        """Note that reconcile gave back the places of what is cancelled in the store."""
        for message_id, accepted in self.stored.items():
            if accepted.cancelled and not accepted.released:
                self.ledger.free(message_id)
                accepted.released = True

    def windows(self) -> Places:
        return {
            key_of(self.house, scope): sorted(
                (self.ledger.holders.get(id_, id_).bytes, at) for id_, at in members.items()
            )
            for scope, members in self.ledger.places.items()
            if members
        }

    def store(self) -> Places:
        found: defaultdict[str, list[tuple[bytes, int]]] = defaultdict(list)
        for message_id, accepted in self.stored.items():
            if not accepted.cancelled:
                for scope in accepted.wish.scopes:
                    found[key_of(self.house, scope)].append((message_id.bytes, accepted.at))
        return {name: sorted(places) for name, places in found.items()}

    def one_after_the_other(self, asks: Sequence[Ask]) -> list[Expected]:
        """Say what submits in a row must come to; none of them is noted."""
        before = {scope: dict(members) for scope, members in self.ledger.places.items()}
        found = []
        for ask in asks:
            expected = self.expected(ask)
            if isinstance(expected, int):
                self.ledger.book(self.wish(ask).scopes, uuid4(), expected)
            found.append(expected)
        self.ledger.places = before
        return found


# What is asked of a house in stories, and by what settings it answers.


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

OWN_QUOTAS = (
    None, "1/minute", "3/10 minute", "1/day in Asia/Kathmandu", "9/2 minute, 20/hour in local",
)  # fmt: skip
OF_ONE = (
    ("tenant", "acme"), ("recipient", "ada"), ("recipient.memory", "ada"),
    ("channel.memory", "memory"),
)  # fmt: skip
"""Scopes that may have quotas of their own, by kind and name."""

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
