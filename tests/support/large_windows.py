"""Windows of up to ten thousand members on a real Redis, and what the model says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from dispatcher.errors import QuotaExceeded, SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import BookingRequest, Slot, Terms
from dispatcher.scope import OWN_SCOPE, counted, of_scope_on, own_scope
from dispatcher.times.send_time import from_ms, to_ms
from tests.support import model
from tests.support.model import Interval, blocked, merged, next_free
from tests.support.reserving import Reserving, move, reserve, reserving, win, window

BASE = 4_102_444_800_000  # 2100-01-01, ms
CHANNEL = "sms"
NEAR = of_scope_on(CHANNEL)
ONE, BOTH = (
    counted(kinds, scope="ada", channel=CHANNEL) for kinds in ((OWN_SCOPE,), (OWN_SCOPE, NEAR))
)
MOST_NAMED = 100


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
    each.__name__: each for each in (full, equal, gaps, nearly, bursts, scattered)
}


@dataclass
class Calls:
    """How often each script was called, and how often it could not judge a time in one call."""

    made: Counter[str] = field(default_factory=Counter)
    stopped: list[int] = field(default_factory=list)
    """Where calls stopped that left the rest to the next: times up to which runs have to end."""

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
        if word == b"checking":
            self.stopped.append(reply[3])
        if word in {b"unsure", b"checking"}:
            self.made[f"{name} {word.decode()}"] += 1


class Filled:
    """Windows of one shard on a real Redis and their members in the model.

    What is booked is in every window; a second one has every ninth member besides.
    """

    def __init__(
        self,
        url: str,
        quotas: Sequence[Quota],
        members: Iterable[int],
        *,
        calls: Calls | None = None,
        near: Sequence[Quota] = (),
    ) -> None:
        kinds = {NEAR: near} if near else {}
        self.real = reserving(url, list(quotas), further=kinds, namespace="large", shards=1)
        self.real.client.flushdb()
        self.real.open()
        (calls or Calls()).watch(self.real)
        self.terms = Terms(BOTH if near else ONE)
        self.quotas = {str(own_scope("ada")): quotas, f"{NEAR}:ada": near}
        times = sorted(BASE + each for each in members)
        self.booked: dict[UUID, int] = {new_id(): each for each in times}
        self.tails: dict[UUID, str] = {}
        self.besides: dict[UUID, int] = {new_id(): each for each in times[::9]} if near else {}
        for key, held in self.windows().items():
            self.real.client.zadd(key, {each.bytes: at for each, at in held.items()})

    def windows(self) -> dict[str, dict[UUID, int]]:
        held = (self.booked, self.booked | self.besides)
        keys = (self.real.keys(scope.home).window(scope.name, scope.kind)
                for scope in self.terms.scopes)  # fmt: skip
        return dict(zip(keys, held, strict=False))

    def intervals(self, without: UUID | None = None) -> list[Interval]:
        found = []
        for held, quotas in zip(self.windows().values(), self.quotas.values(), strict=False):
            members = sorted(at for each, at in held.items() if each != without)
            found += blocked(members, [(each.count, each.length_ms) for each in quotas])
        return merged(found)

    def reserve(self, asked: int, room: int) -> None:
        slot, message_id = next_free(self.intervals(), asked), new_id()
        try:
            found = reserve(
                self.real.windows,
                message_id,
                terms=self.terms,
                send_at=from_ms(asked),
                latest=from_ms(asked + room),
            )
        except SlotRefused as refused:
            assert slot > asked + room
            self.check(refused, asked, slot)
        else:
            assert to_ms(found.send_at) == slot <= asked + room
            self.booked[message_id] = slot

    def next_slot(self, asked: int, _room: int) -> None:
        found = to_ms(self.real.windows.next_slot(self.terms, from_ms(asked)))
        assert found == next_free(self.intervals(), asked)

    def move(self, asked: int, room: int) -> None:
        message_id = list(self.booked)[asked % len(self.booked)]
        slot = next_free(self.intervals(message_id), asked)
        try:
            moving = move(
                self.real.windows, message_id, terms=self.terms, send_at=from_ms(asked),
                latest=from_ms(asked + room), tail=self.tails.get(message_id, ""),
            )  # fmt: skip
        except SlotRefused as refused:
            assert slot > asked + room
            self.check(refused, asked, slot, without=message_id)
        else:
            assert moving.asked_ms == slot <= asked + room
            win(self.real.windows, moving, tail=self.tails.get(message_id, ""))
            self.tails[message_id] = moving.tail
            self.booked[message_id] = slot

    def many(self, asked: int, room: int) -> None:
        """Several at once get what they would get one after the other."""
        times = [(asked + n * room // 7, room * (n % 2)) for n in range(6)]
        requests = [BookingRequest(new_id(), self.terms, at, at + spare) for at, spare in times]
        found = self.real.windows.book(requests)
        for request, answer in zip(requests, found, strict=True):
            slot = next_free(self.intervals(), request.asked_ms)
            if slot <= request.latest_ms:
                assert isinstance(answer, Slot)
                assert answer.at_ms == slot
                self.booked[request.message_id] = slot
            else:
                assert isinstance(answer, QuotaExceeded)

    def check(
        self, refusal: SlotRefused, asked: int, slot: int, *, without: UUID | None = None
    ) -> None:
        assert isinstance(refusal, QuotaExceeded)
        assert to_ms(refusal.next_slot) == slot
        assert without not in refusal.conflicting
        named = next(each for each in self.quotas[refusal.scope] if str(each) == refusal.quota)
        held = self.booked if refusal.scope == "ada" else self.booked | self.besides
        members = sorted(at for each, at in held.items() if each != without)
        assert not model.fits(members, asked, [(named.count, named.length_ms)])
        assert len(set(refusal.conflicting)) == min(named.count, MOST_NAMED)
        times = [*(held[each] for each in refusal.conflicting), asked]
        assert max(times) - min(times) < named.length_ms

    def check_windows(self) -> None:
        for key, held in self.windows().items():
            assert window(self.real.client, key) == held


def lone(count: int, start: int) -> list[int]:
    """Return members a ms apart of which just one row of N has no gap; it begins at ``start``."""
    rows = range(-3, 4)
    before = [start - 1 + count * row - n for row in rows if row <= 0 for n in range(1, count)]
    after = [start + count * row + 1 + n for row in rows if row >= 1 for n in range(count - 1)]
    return [*before, *range(start, start + count), *after]
