"""Windows, their upkeep and permits in memory answer like those on Redis, and hold the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dispatcher.limiters import Permit
from dispatcher.reservation import (
    Blocked,
    BookingRequest,
    Moving,
    Rebooked,
    Reserved,
    Submit,
    Terms,
    Unconfirmed,
)
from dispatcher.scope import counted
from dispatcher.times.send_time import from_ms, to_ms
from tests.simulation.sides import MARKER_LIFE, MS, QUOTAS, UNDER_WAY, Side, Sides
from tests.support.reserving import Booking, reserve
from tests.support.servers import RedisServer
from tests.support.soak import a_third_of

STEPS = 250


class Both(Sides):
    """A random history on both."""

    def __init__(self, path: str, seed: int) -> None:
        super().__init__(path)
        self.rng = random.Random(seed)
        self.ids: list[UUID] = []
        self.terms: dict[UUID, Terms] = {}
        self.bookings: list[Booking] = []
        self.movings: list[Moving] = []
        self.tried: list[Permit] = []
        self.found: list[Unconfirmed] = []
        self.token = 0
        self._rebuild()

    def step(self) -> None:
        """Let a moment pass, then do something."""
        ends = [at - self.server.now_ms() for at in self.ends().values()]
        if ends and self.rng.random() < 0.1:  # up to the last moment of something, or past it
            self.let_pass(max(0, self.rng.choice(ends)) + self.rng.choice([0, 1]))
        else:
            self.let_pass(self.rng.choice([0, 0, 1, 40, 300, 900, 4_000]))
        often = [self._reserve, self._reserve, self._many, self._move, self._settle_moves,
                 self._give_back, self._permits, self._permits, self._permits_end, self._sweep,
                 self._sweep]  # fmt: skip
        disasters = [self.keep, self.flush, self.fail_over]
        self.rng.choice([*often, *often, *often, *often, *often, *disasters])()

    def _id(self) -> UUID:
        made = UUID(int=(len(self.ids) << 80) | (7 << 76) | (2 << 62) | self.rng.getrandbits(40))
        self.ids.append(made)
        return made

    def _terms(self) -> Terms:
        rng = self.rng
        tenants: Mapping[str, str] = {"tenant": rng.choice(["red", "blue"])}
        return Terms(
            counted(
                QUOTAS, scope=rng.choice(["ada", "bob"]), channel=rng.choice(["sms", "mail"]),
                scopes=tenants if rng.random() < 0.5 else None,
            )
        )  # fmt: skip

    def _time(self) -> datetime:
        length = timedelta(milliseconds=self.rng.choice([0, 500, 2_000, 8_000, 14_000]))
        return self.now() + length + self.rng.randrange(1_000) * MS

    def _submit(self) -> Submit | None:
        if self.rng.random() < 0.5:
            return None
        fingerprint = self.rng.choice(["a", "a", "a", "b"])
        return Submit(self.rng.choice(["k1", "k2", "k3"]), fingerprint, f"{self.rng.random()}")

    def _reserve(self) -> None:
        rng = self.rng
        known = self.bookings and rng.random() < 0.2
        message_id = rng.choice(self.bookings).message_id if known else self._id()
        terms = self.terms.setdefault(message_id, self._terms())
        send_at, submit = self._time(), self._submit()
        asked: dict[str, Any] = {
            "terms": terms, "send_at": send_at, "submit": submit,
            "latest": rng.choice([None, send_at + timedelta(seconds=2), send_at + UNDER_WAY]),
            "grace": rng.choice([timedelta(0), timedelta(seconds=5)]),
            "is_stored": rng.random() < 0.1,
        }  # fmt: skip
        booking = self.ask("reserve", lambda side: reserve(side.windows, message_id, **asked))
        if isinstance(booking, Booking):
            self.bookings.append(booking)
        if rng.random() < 0.2:
            self.ask("next_slot", lambda side: side.windows.next_slot(terms, send_at))
        if rng.random() < 0.3:
            self._move(-1)

    def _many(self) -> None:
        requests = []
        for _ in range(self.rng.randrange(5)):
            message_id, asked_ms = self._id(), to_ms(self._time())
            self.terms[message_id] = self._terms()
            latest_ms = asked_ms + self.rng.choice([0, 0, 3_000, 20_000])
            request = BookingRequest(
                message_id, self.terms[message_id], asked_ms, latest_ms, self._submit()
            )
            requests.append(request)
        found = self.ask("reserve_many", lambda side: side.windows.book(requests))
        if isinstance(found, str) or self.rng.random() < 0.3:
            self.ask("withdraw_many", lambda side: side.windows.withdraw(requests))
            return
        for request, each in zip(requests, found, strict=True):
            if isinstance(each, Rebooked):
                (message_id, terms, _, _, submit), (_, at_ms, _) = each
                self.bookings.append(Booking(message_id, terms, from_ms(at_ms), submit))
            elif isinstance(each, int):
                at = from_ms(each)
                self.bookings.append(Booking(request.message_id, request.terms, at, request.submit))

    def _move(self, first: int = -8) -> None:
        if not self.bookings:
            return
        booking = self.rng.choice(self.bookings[first:])
        send_at = self._time()
        beside = self.rng.choice(self.movings) if self.movings else None
        if beside is not None and beside.message_id != booking.message_id:
            beside = None
        latest = self.rng.choice([None, send_at + timedelta(seconds=9)])
        moving = self.ask(
            "move",
            lambda side: side.windows.move(
                booking.message_id, terms=booking.terms, send_at=send_at, latest=latest,
                beside=beside,
            ),
        )  # fmt: skip
        if isinstance(moving, Moving):
            self.movings.append(moving)

    def _settle_moves(self) -> None:
        if not self.movings:
            return
        moving = self.rng.choice(self.movings[-4:])
        luck = self.rng.random()
        if luck < 0.5:
            self.token += 1
            token = self.token - self.rng.choice([0, 0, 0, 2])
            self.ask("take", lambda side: side.windows.take([(moving, token)]))
        elif luck < 0.8:
            again = self.ask("hold_again", lambda side: side.windows.hold_again(moving))
            if isinstance(again, Moving):
                self.movings.append(again)
            elif isinstance(again, Blocked):
                terms, at_ms = moving.terms, to_ms(moving.send_at)
                self.ask("refusal", lambda side: side.windows.refusal(terms, at_ms, again))
        else:
            self.ask("drop", lambda side: side.windows.drop(moving))

    def _give_back(self) -> None:
        if not self.bookings:
            return
        booking = self.rng.choice(self.bookings[-10:])
        if self.rng.random() < 0.6:
            self.ask("withdraw", lambda side: side.windows.withdraw([booking.request]))
        else:
            self.ask(
                "release", lambda side: side.windows.release(booking.message_id, booking.terms)
            )

    def _permit(self) -> Permit:
        rng = self.rng
        if self.tried and rng.random() < 0.5:
            known = rng.choice(self.tried[-6:])
            return known._replace(token=known.token + rng.choice([0, 0, 1]))
        scope, channel = rng.choice(["ada", "bob", "cyd"]), rng.choice(["sms", "sms", "mail"])
        return Permit(self._id(), 1, scope, channel)

    def _length(self) -> timedelta:
        return self.rng.choice([-2_000, 0, 30, 700, 5_000, 20_000]) * MS

    def _permits(self) -> None:
        wanted = {each.message_id: each for each in (self._permit() for _ in range(4))}
        some = list(wanted.values())[: self.rng.randrange(1, 5)]
        hold = self.rng.choice([500, 3_000]) * MS
        self.ask("acquire", lambda side: side.permits.acquire(some, within=hold))
        self.tried += some

    def _permits_end(self) -> None:
        some = [self._permit() for _ in range(2)]
        luck, hold = self.rng.random(), abs(self._length())
        if luck < 0.5:
            used = [(each, self._length()) for each in some]
            self.ask("settle", lambda side: side.permits.settle(used))
        elif luck < 0.7:
            self.ask("extend", lambda side: side.permits.extend(some, within=hold))
        elif luck < 0.9:
            self.ask("give_back", lambda side: side.permits.give_back(some))
            self._bring_forward()
        else:
            self.ask("close", lambda side: side.permits.close("sms", hold))

    def _bring_forward(self) -> None:
        """Let more ask than there is room for, and give back what some have."""
        scope, channel = self.rng.choice(["ada", "bob", "cyd"]), self.rng.choice(["sms", "mail"])
        herd = [Permit(self._id(), 1, scope, channel) for _ in range(5)]
        self.ask("acquire", lambda side: side.permits.acquire(herd, within=700 * MS))
        self.let_pass(self.rng.choice([0, 40, 900]))
        given_back = herd[: self.rng.randrange(1, 4)]
        self.ask("give_back", lambda side: side.permits.give_back(given_back))
        logs, each = self.rng.choice([1, 9]), self.rng.choice([1, 9])
        waiting = self.ask("waiting", lambda side: side.permits.waiting(logs=logs, each=each))
        if waiting and self.rng.random() < 0.8:
            come = {id_ for some in waiting.values() for id_ in some if self.rng.random() < 0.7}
            self.let_pass(self.rng.choice([0, 0, 40, 4_000]))
            self.ask("give_turns", lambda side: side.permits.give_turns(waiting, come))

    def _sweep(self) -> None:
        rng = self.rng
        rows = [
            Reserved(each.message_id, each.terms.scopes, each.send_at)
            for each in rng.sample(self.bookings, min(3, len(self.bookings)))
        ]
        luck = rng.random()
        if luck < 0.4:
            self._settle_unconfirmed(rows)
        elif luck < 0.5:
            self.ask("release_rows", lambda side: side.upkeep.release(rows))
        elif luck < 0.6:
            self.ask("restore_missing", lambda side: side.upkeep.restore_missing(rows))
        elif luck < 0.7:
            opened = self.ask(
                "unchecked", lambda side: side.upkeep.unchecked(older_than=timedelta(seconds=2))
            )
            self.ask("mark_checked", lambda side: side.upkeep.mark_checked(opened))
        else:
            self._rebuild(rows)

    def _settle_unconfirmed(self, rows: list[Reserved]) -> None:
        rng = self.rng
        skip = {self.server.keys[0]: rng.choice([0, 1])}
        older, limit = rng.choice([0, 2_000, 8_000]) * MS, rng.choice([3, 100])
        self.found += self.ask(
            "unconfirmed",
            lambda side: side.upkeep.unconfirmed(older_than=older, limit=limit, skip=skip),
        )
        self.found = self.found[-12:]
        some = [each for each in self.found if rng.random() < 0.6]
        if rng.random() < 0.3:
            some += self.ask("await", lambda side: side.upkeep.await_confirmation(some, rows))
        if rng.random() < 0.2:
            some = [each._replace(before_ms=10**15) for each in some]
        stored = {
            each.message_id: (self._time(), self.token + rng.choice([-3, 0, 1]))
            for each in some
            if rng.random() < 0.7
        }
        self.ask("confirm", lambda side: side.upkeep.confirm(some, stored))

    def _rebuild(self, rows: list[Reserved] | None = None) -> None:
        """Begin a rebuild, and do some of its steps, or some of an older one's."""
        rng, whole = self.rng, rows is None
        if whole or rng.random() < 0.8:
            self.ask("begin", lambda side: side.begun(side.upkeep.begin()))
        elif rng.random() < 0.3:
            some = rng.sample(range(3), 2)
            self.ask("close_shards", lambda side: side.begun(side.upkeep.close(some)))
        if not self.sides[0].rebuilds:
            return
        last = -1 if rng.random() < 0.8 else rng.choice([-1, 0])
        ages = [(self._permit(), self._length()) for _ in range(3)]
        steps: dict[str, Callable[[Side], Any]] = {
            "wipe": lambda side: side.upkeep.wipe(side.rebuilds[last]),
            "restore": lambda side: side.upkeep.restore(side.rebuilds[last], rows or []),
            "hold": lambda side: side.upkeep.restore(side.rebuilds[last], ()),
            "restore_permits": lambda side: side.permits.restore(
                ages, side.rebuilds[last].permit_markers, marker_life=MARKER_LIFE
            ),
            "open": lambda side: side.upkeep.open(side.rebuilds[last]),
        }
        for name, call in steps.items():
            if whole or rng.random() < 0.8:
                self.let_pass(rng.choice([0, 1, 2_000, 9_000]) if not whole else 0)
                self.ask(name, call)


@pytest.mark.parametrize("seed", a_third_of(range(6)))
def test_redis_in_memory_is_redis(seed: int, redis_server: RedisServer) -> None:
    both = Both(str(redis_server.socket), seed)
    try:
        for _ in range(STEPS):
            both.step()
    finally:
        both.redis.close()
    assert len(both.answers) > 20
