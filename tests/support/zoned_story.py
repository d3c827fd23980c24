"""Plays wishes on real windows and in the model, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from dispatcher.errors import NoPlace
from dispatcher.message import new_id
from dispatcher.reservation import Bulk, Request
from dispatcher.reservation.terms import AnyQuota
from dispatcher.scope import PLAIN
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.calendar_model import Item
from tests.support.reserving import TOKENS, Reserving, reserving, window
from tests.support.zoned_model import Ledger, Wish

SHARDS = 4


class Step(NamedTuple):
    """One call: what is asked for, by whom, and when."""

    verb: str
    offset: int
    room: int
    who: int


@dataclass(frozen=True)
class Scene:
    """Where and when a story plays, by what rules."""

    zone: str
    other_zone: str
    base: int
    quotas: Mapping[str, Sequence[AnyQuota]]
    items: tuple[Item, ...]
    steps: Sequence[Step]


class Story:
    """Plays a scene's steps on real windows and in the model."""

    numbers = itertools.count()

    def __init__(self, url: str, scene: Scene, wishes: Sequence[Wish]) -> None:
        self.scene = scene
        self.wishes = wishes
        self.ledger = Ledger(scene.quotas)
        self.of: dict[UUID, Wish] = {}
        further = {kind: each for kind, each in scene.quotas.items() if kind != PLAIN}
        self.real: Reserving = reserving(
            url,
            list(scene.quotas[PLAIN]),
            further=further,
            namespace=f"zoned-{next(self.numbers)}",
            shards=SHARDS,
        )
        self.real.open()

    def play(self) -> None:
        with self.real:
            for step in self.scene.steps:
                getattr(self, step.verb)(step)
                self.check_windows()
            names = self.real.client.keys(f"{{{self.real.namespace}:*")
            self.real.client.unlink(*names)

    def wish(self, step: Step) -> Wish:
        return self.wishes[step.who % len(self.wishes)]

    def asked(self, step: Step) -> int:
        return self.scene.base + step.offset

    def book(self, step: Step, room: int = 0) -> None:
        wish, asked = self.wish(step), self.asked(step)
        slot = self.ledger.slot(wish, asked)
        latest = from_ms(asked + room) if room else None
        try:
            found = self.real.windows.reserve(
                new_id(), terms=wish.terms, send_at=from_ms(asked), latest=latest
            )
        except NoPlace as refused:
            assert slot > asked + room
            self.ledger.check(wish, asked, refused)
        else:
            assert to_ms(found.send_at) == slot
            assert slot <= asked + room
            self.ledger.book(wish.scopes, found.message_id, slot)
            self.of[found.message_id] = wish

    def shift(self, step: Step) -> None:
        self.book(step, step.room)

    def many(self, step: Step) -> None:
        """Several at once: whoever is booked fits, and who is refused does not even afterwards.

        Scopes in several shards are not booked in order, which is seen where zones differ: what
        is a day to one message is none to the other.
        """
        asked, rooms = self.asked(step), [0, step.room, 0, step.room // 2]
        wishes = [self.wishes[(step.who + n) % len(self.wishes)] for n in range(4)]
        requests = [
            Request(new_id(), wish.terms, asked, asked + room)
            for wish, room in zip(wishes, rooms, strict=True)
        ]
        same = len(self.scene.quotas) == 1 or len({wish.zone for wish in wishes}) == 1
        found = Bulk(self.real.windows).reserve(requests)
        for wish, request, booked in zip(wishes, requests, found, strict=True):
            if isinstance(booked, int):
                at = booked
                assert asked <= at <= request.latest_ms
                assert self.ledger.fits(wish, at) or not same
                self.ledger.book(wish.scopes, request.message_id, at)
                self.of[request.message_id] = wish
        for wish, request, refused in zip(wishes, requests, found, strict=True):
            if isinstance(refused, NoPlace):
                assert self.ledger.slot(wish, asked, most=request.latest_ms) > request.latest_ms
                assert to_ms(refused.next_slot) > request.latest_ms
                self.ledger.check_reason(wish, asked, refused)

    def slot(self, step: Step) -> None:
        wish, asked = self.wish(step), self.asked(step)
        found = self.real.windows.next_slot(wish.terms, from_ms(asked))
        assert to_ms(found) == self.ledger.slot(wish, asked)

    def move(self, step: Step, room: int = 0) -> None:
        booked = list(self.of)
        if not booked:
            return
        message_id = booked[step.who % len(booked)]
        wish, asked = self.of[message_id], self.asked(step)
        slot = self.ledger.slot(wish, asked, without=message_id)
        latest = from_ms(asked + room) if room else None
        try:
            moving = self.real.windows.move(
                message_id, terms=wish.terms, send_at=from_ms(asked), latest=latest
            )
        except NoPlace as refused:
            assert slot > asked + room
            self.ledger.check(wish, asked, refused, without=message_id)
            return
        assert to_ms(moving.send_at) == slot
        assert slot <= asked + room
        if step.who % 3:
            assert self.real.windows.take([(moving, next(TOKENS))]) == [True]
            self.ledger.book(wish.scopes, message_id, slot)
        else:
            self.real.windows.drop(moving)

    def push(self, step: Step) -> None:
        self.move(step, step.room)

    def free(self, step: Step) -> None:
        booked = list(self.of)
        if not booked:
            return
        message_id = booked[step.who % len(booked)]
        self.real.windows.release(message_id, self.of.pop(message_id).terms)
        self.ledger.free(message_id)

    def check_windows(self) -> None:
        for scope, members in self.ledger.places.items():
            key = self.real.keys(scope.home).window(scope.name, scope.kind)
            assert window(self.real.client, key) == members
