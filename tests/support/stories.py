"""Bookings, moves and searches on a real Redis, each compared with what the model says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple, Self
from uuid import UUID

from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import AnyQuota, Quota
from dispatcher.reservation.booking import BookingRequest, Slot
from dispatcher.scope import OWN_SCOPE, Scope, counted, of_scope_on
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.model import Ledger, Wish
from tests.support.reserving import Reserving, cancel, move, reserve, reserving, stored, win, window

SHARDS = 4
BASE = 4_102_444_800_000  # 2100-01-01, ms


class Step(NamedTuple):
    """One call: what is asked for, how long after the base, with how much room, by whom."""

    verb: str
    offset: int
    room: int = 0
    who: int = 1


class Story:
    """Windows on a Redis, who has which time in them by the model, and who waits for the store."""

    numbers = itertools.count()

    def __init__(
        self,
        url: str,
        quotas: Mapping[str, Sequence[AnyQuota]],
        wishes: Sequence[Wish],
        *,
        base: int = BASE,
    ) -> None:
        self.base = base
        self.wishes = wishes
        self.ledger = Ledger(quotas)
        self.of: dict[UUID, Wish] = {}
        self.unconfirmed: set[UUID] = set()
        self.tails: dict[UUID, str] = {}
        self.is_filled = False
        self.real: Reserving = reserving(
            url,
            list(quotas[OWN_SCOPE]),
            further={kind: rules for kind, rules in quotas.items() if kind != OWN_SCOPE},
            namespace=f"story-{next(self.numbers)}",
            shards=SHARDS,
        )
        self.real.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        names = self.real.client.keys(f"{{{self.real.namespace}:*")
        self.real.client.unlink(*names)
        self.real.client.close()

    def fill(self, scopes: tuple[Scope, ...], times: Iterable[int]) -> None:
        """Put members into windows, whatever the quotas say."""
        members = {new_id(): at for at in times}
        for scope in scopes:
            self.ledger.places.setdefault(scope, {}).update(members)
            name = self.real.keys(scope.home).window(scope.name, scope.kind)
            self.real.client.zadd(name, {id_.bytes: at for id_, at in members.items()})
        self.of |= dict.fromkeys(members, Wish(scopes))
        self.is_filled = True

    def play(self, steps: Iterable[Step]) -> None:
        for step in steps:
            getattr(self, step.verb)(step)
            self.check_windows()

    def slot_after(self, asked: int) -> int:
        return self.ledger.slot(self.wishes[0], asked)

    def wish(self, step: Step) -> Wish:
        return self.wishes[step.who % len(self.wishes)]

    def asked(self, step: Step) -> int:
        return self.base + step.offset

    def book(self, step: Step, room: int = 0) -> None:
        wish, asked = self.wish(step), self.asked(step)
        slot = self.ledger.slot(wish, asked)
        latest = from_ms(asked + room) if room else None
        try:
            booking = reserve(
                self.real.windows, new_id(), terms=wish.terms, send_at=from_ms(asked), latest=latest
            )
        except SlotRefused as refused:
            assert slot > asked + room
            self.ledger.check(wish, asked, refused)
        else:
            assert to_ms(booking.send_at) == slot
            assert slot <= asked + room
            self.note(booking.message_id, wish, slot)

    def note(self, message_id: UUID, wish: Wish, slot: int) -> None:
        self.ledger.book(wish.scopes, message_id, slot)
        self.of[message_id] = wish
        self.unconfirmed.add(message_id)

    def again(self, step: Step) -> None:
        """Book one that is booked: it keeps its place, and waits for the store once more."""
        if (message_id := self.booked(step)) is None or message_id in self.tails:
            return  # the submit of what was moved ended long ago
        terms, scope = self.of[message_id].terms, self.of[message_id].scopes[0]
        booking = reserve(
            self.real.windows, message_id, terms=terms, send_at=from_ms(self.asked(step))
        )
        assert to_ms(booking.send_at) == self.ledger.places[scope][message_id]
        self.unconfirmed.add(message_id)

    def confirm(self, _: Step) -> None:
        """Confirm, as the sweep does, all that waits for the store; the scripts are lost."""
        entries = self.real.upkeep.unconfirmed(older_than=timedelta(0), limit=1_000)
        places = {id_: at for held in self.ledger.places.values() for id_, at in held.items()}
        times = {id_: from_ms(at) for id_, at in places.items()}
        assert self.real.upkeep.confirm(entries, stored(times, self.tails)) == 0
        self.unconfirmed.clear()
        self.real.client.script_flush()

    def booked(self, step: Step) -> UUID | None:
        booked = list(self.of)
        return booked[step.who % len(booked)] if booked else None

    def shift(self, step: Step) -> None:
        self.book(step, step.room)

    def many(self, step: Step) -> None:
        """Several at once get what they would get one after the other."""
        asked, rooms = self.asked(step), [0, step.room, 0, step.room // 2]
        wishes = [self.wishes[(step.who + n) % len(self.wishes)] for n in range(4)]
        requests = [
            BookingRequest(new_id(), wish.terms, asked, asked + room)
            for wish, room in zip(wishes, rooms, strict=True)
        ]
        answers = self.real.windows.book(requests)
        for wish, request, answer in zip(wishes, requests, answers, strict=True):
            slot = self.ledger.slot(wish, asked)
            if isinstance(answer, Slot):
                assert answer.at_ms == slot <= request.latest_ms
                self.note(answer.message_id, wish, slot)
            else:
                assert isinstance(answer, SlotRefused)
                assert slot > request.latest_ms
                self.ledger.check(wish, asked, answer)

    def slot(self, step: Step) -> None:
        wish, asked = self.wish(step), self.asked(step)
        next_at = self.real.windows.next_slot(wish.terms, from_ms(asked))
        assert to_ms(next_at) == self.ledger.slot(wish, asked)

    def move(self, step: Step, room: int = 0) -> None:
        if (message_id := self.booked(step)) is None:
            return
        wish, asked = self.of[message_id], self.asked(step)
        slot = self.ledger.slot(wish, asked, without=message_id)
        latest = from_ms(asked + room) if room else None
        try:
            moving = move(
                self.real.windows, message_id, terms=wish.terms, send_at=from_ms(asked),
                latest=latest, tail=self.tails.get(message_id, ""),
            )  # fmt: skip
        except SlotRefused as refused:
            assert slot > asked + room
            self.ledger.check(wish, asked, refused, without=message_id)
            return
        assert moving.asked_ms == slot
        assert slot <= asked + room
        if step.who % 3:
            win(self.real.windows, moving, tail=self.tails.get(message_id, ""))
            self.tails[message_id] = moving.tail
            self.note(message_id, wish, slot)
        else:
            self.real.windows.withdraw([moving])
            self.unconfirmed.add(message_id)

    def push(self, step: Step) -> None:
        self.move(step, step.room)

    def free(self, step: Step) -> None:
        if (message_id := self.booked(step)) is None:
            return
        terms = self.of.pop(message_id).terms
        cancel(self.real.windows, message_id, terms, self.tails.get(message_id, ""))
        self.ledger.free(message_id)
        self.unconfirmed.discard(message_id)

    def check_windows(self) -> None:
        waiting = {UUID(bytes=member[:16]) for member, _ in self.real.unconfirmed()}
        assert waiting == self.unconfirmed
        for scope, members in self.ledger.places.items():
            key = self.real.keys(scope.home).window(scope.name, scope.kind)
            assert window(self.real.client, key) == members
            assert self.is_filled or self.ledger.broken(scope, sorted(members.values())) == []
            priorities = {message_id: wish.priority for message_id, wish in self.of.items()}
            assert self.is_filled or self.ledger.taken(scope, priorities) == []


# Windows of up to ten thousand members.


NEAR = of_scope_on("sms")
ONE, BOTH = (
    counted(kinds, scope="ada", channel="sms") for kinds in ((OWN_SCOPE,), (OWN_SCOPE, NEAR))
)


def full(random: Random, count: int, gap: int) -> list[int]:
    return [n * gap for n in range(3 * count)]


def equal(random: Random, count: int, gap: int) -> list[int]:
    return [group * count * gap for group in range(3) for _ in range(count)]


def gaps(random: Random, count: int, gap: int) -> list[int]:
    """Full but for one place in about every N; here and there one is missing that would help."""
    every = max(2, count - random.randrange(3))
    kept = {n for n in range(0, 3 * count, every) if random.random() < 0.05}
    return [n * gap for n in range(3 * count) if n % every or n in kept]


def nearly(random: Random, count: int, gap: int) -> list[int]:
    return [n * gap * 10 // 9 for n in range(3 * count)]


def bursts(random: Random, count: int, gap: int) -> list[int]:
    size = max(1, count // random.randrange(1, 6))
    starts = [random.randrange(3 * count * gap) for _ in range(3 * count // size)]
    return [start + n % 7 for start in starts for n in range(size)]


def scattered(random: Random, count: int, gap: int) -> list[int]:
    return [random.randrange(3 * count * gap) for _ in range(3 * count)]


PATTERNS: dict[str, Callable[[Random, int, int], list[int]]] = {
    pattern.__name__: pattern for pattern in (full, equal, gaps, nearly, bursts, scattered)
}


def lone(count: int, start: int) -> list[int]:
    """Return members a ms apart of which just one row of N has no gap; it begins at ``start``."""
    rows = range(-3, 4)
    before = [start - 1 + count * row - n for row in rows if row <= 0 for n in range(1, count)]
    after = [start + count * row + 1 + n for row in rows if row >= 1 for n in range(count - 1)]
    return [*before, *range(start, start + count), *after]


def large(
    url: str, quotas: Sequence[Quota], members: Iterable[int], *, near: Sequence[Quota] = ()
) -> Story:
    """Return a story with these members, so long after the base.

    What is booked is in every window; that of ``near`` has every ninth member besides.
    """
    scopes = BOTH if near else ONE
    story = Story(url, {OWN_SCOPE: quotas, **({NEAR: near} if near else {})}, [Wish(scopes)])
    times = sorted(BASE + member for member in members)
    story.fill(scopes, times)
    if near:
        story.fill(scopes[1:], times[::9])
    return story


@dataclass
class Calls:
    """How often each script was called, and how often it could not judge a time in one call."""

    made: Counter[str] = field(default_factory=Counter)

    def watch(self, real: Reserving) -> None:
        shards: Any = real.windows.shards
        names = ("reserve", "next_slot", "check")
        name_of = {getattr(shards, f"_{name}"): name for name in names}
        run = shards._run

        def watched(script: Any, calls: Sequence[Any]) -> list[Any]:
            replies: list[Any] = run(script, calls)
            for reply in replies if script in name_of else ():
                self._note(name_of[script], reply)
            return replies

        shards._run = watched

    def _note(self, name: str, reply: Any) -> None:
        self.made[name] += 1
        word = reply
        while isinstance(word, list):
            word = word[0]
        if word in {b"unsure", b"checking"}:
            self.made[f"{name} {word.decode()}"] += 1
