"""Whole houses on real servers: whatever is asked of them in whatever order, against a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    IdempotencyConflict,
    InvalidSendTime,
    ReservationsUnavailable,
    SlotRefused,
    TooLate,
)
from dispatcher.message import Message, Rejection, new_id
from dispatcher.quota import parse_quota
from dispatcher.reservation.booking import Submit
from dispatcher.reservation.encoding import member_of
from dispatcher.scope import scope_named
from dispatcher.store.messages import NewSlot
from dispatcher.submission.pipeline import Result
from dispatcher.submission.validation import validate_fields
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.clock import MovableClock
from tests.support.examples import examples, play
from tests.support.house import (
    FAR,
    House,
    house_on,
    let_graces_pass,
    pending_entries,
    promised,
    windows_of,
)
from tests.support.house_model import (
    FAR_AWAY,
    OF_ONE,
    OWN_QUOTAS,
    QUIET,
    SETTINGS,
    Accepted,
    Ask,
    Expected,
    HouseModel,
    Orphan,
    asks,
    named,
    offsets,
    places_of,
    rooms,
)
from tests.support.reserving import move, reserve
from tests.support.rows import insert_attempt
from tests.support.servers import RedisServer

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
choices = st.integers(0, 1_000)
NEVER_CLOSED = precondition(lambda self: not self.model.closed)
SOMETHING = precondition(lambda self: self.model.stored)


def agree(message: Message, accepted: Accepted) -> bool:
    """Whether a message says what was accepted."""
    expires = None if message.expires_at is None else to_ms(message.expires_at)
    said = to_ms(message.send_at), expires, message.body["text"]
    return said == (accepted.at, accepted.expires, accepted.text)


class HouseMachine(RuleBasedStateMachine):
    """One house that all examples share, each on emptied servers."""

    house: House

    @initialize()
    def begin(self) -> None:
        self.house.redis.flushall()
        self.house.sql("DELETE FROM dispatcher_messages")
        self.house.sql("DELETE FROM dispatcher_idempotency_keys")
        self.house.open()
        self.house.moved.set_wall(FAR)
        for of_one in self.house.dispatcher.scope_settings():
            self.house.dispatcher.unset_quotas(of_one.kind, of_one.name)
        self.model = HouseModel(self.house, {"memory": (QUIET,)}, to_ms(FAR))

    @rule(some=st.lists(asks, min_size=1, max_size=4))
    def submit(self, some: list[Ask]) -> None:
        for ask in some:
            expected = self.model.expected(ask)
            try:
                message = self.house.parts.submitter.submit(
                    ask.draft(self.model.start), self.house.parts.own_transaction
                ).answer()
            except DispatcherError as error:
                self.check_error(ask, error, expected)
            else:
                self.check_message(ask, message, expected)

    @rule(ask=asks, later=st.sampled_from([0, 0, 1]))
    def submit_twice(self, ask: Ask, later: int) -> None:
        first = ask._replace(key=str(new_id()))
        self.submit([first, first._replace(offset=first.offset + later)])

    @rule(some=st.lists(asks, min_size=1, max_size=6), atomic=st.booleans())
    def submit_many(self, some: list[Ask], atomic: bool) -> None:
        under_way = {key for key, _ in self.model.orphans}
        some = [each for each in named(some) if each.key not in under_way]
        expected = self.model.one_after_the_other(some)
        at_once = atomic and {InvalidSendTime, IdempotencyConflict} & set(expected)
        drafts = [each.draft(self.model.start) for each in some]
        if ReservationsUnavailable in expected and not at_once:
            with pytest.raises(ReservationsUnavailable):
                self.house.dispatcher.submit_many(drafts, atomic=atomic)
            return
        results = self.house.dispatcher.submit_many(drafts, atomic=atomic)
        if atomic and any(isinstance(each, Rejection) for each in results):
            self.check_none_of_many(results, expected)
        else:
            self.check_each_of_many(some, results, expected)

    @SOMETHING
    @rule(choice=choices)
    def cancel(self, choice: int) -> None:
        message_id, accepted = self.pick(choice)
        if accepted.is_held or accepted.is_dropped:
            with pytest.raises(TooLate):
                self.house.dispatcher.cancel(message_id)
            return
        message = self.house.dispatcher.cancel(message_id)
        assert message.id == message_id
        accepted.cancelled = True
        self.model.ledger.free(message_id)

    @SOMETHING
    @rule(choice=choices, text=st.sampled_from(["hello", "later"]))
    def update(self, choice: int, text: str) -> None:
        message_id, accepted = self.pick(choice)
        if not accepted.may_change and accepted.text != text:
            with pytest.raises(TooLate):
                self.house.dispatcher.update(message_id, body={"text": text})
        else:
            self.house.dispatcher.update(message_id, body={"text": text})
            accepted.text = text

    @SOMETHING
    @rule(choice=choices)
    def die_while_sending(self, choice: int) -> None:
        message_id, accepted = self.pick(choice)
        if not accepted.may_change:
            return
        message = self.house.dispatcher.get(message_id)
        began, token = self.house.database_time() - SECOND, message.attempt_count + 1
        self.house.change(
            [message], status="sending", claimed_by=new_id(), claim_token=token,
            attempt_count=token, claim_expires_at=began, on_unknown="hold",
        )  # fmt: skip
        attempt = {"message_id": message_id, "token": token, "started_at": began}
        insert_attempt(self.house.database, **attempt)
        assert self.house.parts.sweep.rescue() == 1
        accepted.is_held = accepted.is_tried = True

    @SOMETHING
    @rule(choice=choices, drops=st.booleans())
    def decide(self, choice: int, drops: bool) -> None:
        waiting = [each for each in self.model.stored.items() if each[1].is_held]
        message_id, accepted = waiting[choice % len(waiting)] if waiting else self.pick(choice)
        act = self.house.dispatcher.drop if drops else self.house.dispatcher.release
        if not accepted.is_held:
            with pytest.raises(TooLate):
                act(message_id)
            return
        act(message_id)
        accepted.is_held, accepted.is_dropped = False, drops

    @SOMETHING
    @rule(choice=choices, offset=offsets, near=st.booleans(), room=st.one_of(st.none(), rooms))
    def reschedule(self, choice: int, offset: int, near: bool, room: int | None) -> None:
        message_id, accepted = self.pick(choice)
        asked = accepted.at + offset % 121_000 - 60_000 if near else self.model.start + offset
        wanted: dict[str, Any] = {"send_at": from_ms(asked)}
        latest = asked
        if room is not None:
            latest = asked + room
            wanted |= {"on_conflict": "shift", "latest": from_ms(latest)}
        if accepted.expires is not None:
            latest = min(latest, accepted.expires - 1)
        try:
            message = self.house.dispatcher.reschedule(message_id, **wanted)
        except DispatcherError as error:
            self.check_not_moved(message_id, asked, latest, error)
        else:
            self.check_moved(message, asked, latest)

    @SOMETHING
    @rule(
        chosen=st.lists(choices, min_size=2, max_size=5),
        offset=offsets,
        beside=st.one_of(st.none(), choices),
        room=st.one_of(st.none(), rooms),
    )
    def reschedule_many(
        self, chosen: list[int], offset: int, beside: int | None, room: int | None
    ) -> None:
        """As one after the other; where some shard is closed, none of them."""
        ids = list(dict.fromkeys(self.pick(choice)[0] for choice in chosen))
        asked = self.model.start + offset
        if beside is not None:
            asked = self.pick(beside)[1].at
        wanted: dict[str, Any] = {"send_at": from_ms(asked)}
        if room is not None:
            wanted |= {"on_conflict": "shift", "latest": from_ms(asked + room)}
        answers = self.house.dispatcher.reschedule_many(ids, **wanted)
        if any(isinstance(each, ReservationsUnavailable) for each in answers):
            assert any(self.model.is_closed(self.model.stored[each].wish) for each in ids)
            assert not any(isinstance(each, Message) for each in answers)
            return
        for message_id, answer in zip(ids, answers, strict=True):
            expires = self.model.stored[message_id].expires
            latest = asked + (room or 0)
            latest = latest if expires is None else min(latest, expires - 1)
            if isinstance(answer, Message):
                self.check_moved(answer, asked, latest)
            else:
                self.check_not_moved(message_id, asked, latest, answer)

    @rule(ask=asks)
    def look_for_a_slot(self, ask: Ask) -> None:
        wish, asked = self.model.wish(ask), self.model.start + ask.offset
        if asked < self.model.now:
            return
        wanted = {
            "recipient": ask.recipient,
            "channel": ask.channel,
            "scopes": {"tenant": ask.tenant} if ask.tenant else None,
            "zone": ask.zone,
            "quiet_hours": ask.quiet_hours,
            "after": from_ms(asked),
        }
        find: Callable[..., Any] = self.house.dispatcher.next_slot
        if self.model.is_closed(wish):
            with pytest.raises(ReservationsUnavailable):
                find(**wanted)
        else:
            assert to_ms(find(**wanted)) == self.model.ledger.slot(wish, asked)

    @NEVER_CLOSED
    @rule(ask=asks)
    def die_between_reserve_and_commit(self, ask: Ask) -> None:
        if not isinstance(self.model.expected(ask), int):
            return
        if self.model.duplicates(ask) in self.model.orphans:
            return
        valid = validate_fields(
            ask.draft(self.model.start), settings=self.house.settings, now=self.house.clock.now()
        )
        submit = None
        if ask.key:
            superseded = self.model.superseded(ask)
            submit = Submit(ask.key, valid.fingerprint or "", supersedes=superseded)
        booking = reserve(
            self.house.parts.windows,
            new_id(),
            terms=valid.terms,
            send_at=valid.send_at,
            latest=valid.latest,
            submit=submit,
        )
        at = to_ms(booking.send_at)
        self.model.ledger.book(self.model.wish(ask).scopes, booking.message_id, at)
        if ask.key is not None:
            self.model.orphans[self.model.duplicates(ask)] = Orphan(booking.message_id, ask)

    @NEVER_CLOSED
    @SOMETHING
    @rule(choice=choices, offset=offsets, steps=st.integers(0, 2))
    def die_while_moving(self, choice: int, offset: int, steps: int) -> None:
        message_id, accepted = self.pick(choice)
        asked = self.model.start + offset
        slot = self.model.slot(accepted.wish, asked, asked, message_id)
        if not accepted.may_change or slot is SlotRefused or asked == accepted.at:
            return
        found = self.house.parts.messages.movable(message_id)
        moving = move(
            self.house.parts.windows, message_id, terms=accepted.wish.terms,
            send_at=from_ms(asked), tail=found.tail,
        )  # fmt: skip
        second = new_id()
        self.model.book_second(message_id, second, asked)
        if steps == 0 or asked >= (accepted.expires or FAR_AWAY):
            return
        message = found.message
        new = NewSlot(
            found,
            until=found.read_at + timedelta(minutes=1),
            send_at=from_ms(moving.asked_ms),
            next_attempt_at=from_ms(moving.asked_ms),
            enqueue_at=from_ms(moving.asked_ms),
            zone=message.zone,
            expires_at=message.expires_at,
            expire_after=message.expire_after,
            asked_at=None,
            tail=moving.tail,
            wish=None,
            token=0,
        )
        self.house.parts.messages.move([new])
        accepted.at = asked
        self.model.ledger.swap(accepted.wish.scopes, message_id, second)
        if steps == 2:
            first = self.house.parts.windows.legs(moving.terms)[0]
            old = member_of(message_id, found.tail)
            self.house.parts.windows.shards.release_many([(first, old, None)])
            for scope in first.scopes:
                del self.model.ledger.places[scope][second]
            self.model.forget_second()

    @SOMETHING
    @rule(choice=choices)
    def die_while_cancelling(self, choice: int) -> None:
        message_id, accepted = self.pick(choice)
        self.house.parts.messages.cancel([message_id])
        accepted.cancelled = accepted.cancelled or accepted.may_change

    @NEVER_CLOSED
    @SOMETHING
    @rule(choice=st.integers(0, 4))
    def lose_windows(self, choice: int) -> None:
        """Lose everything, or one epoch."""
        if choice == 4:
            self.house.redis.flushall()
            self.model.closed = set(range(self.house.settings.shards))
            self.model.ledger.places.clear()
            self.model.forget_second()
            self.model.orphans.clear()
        else:
            number = choice % self.house.settings.shards
            self.house.redis.delete(self.house.parts.fence.keys[number].epoch)
            self.model.closed = {number}
            self.end_duplicates()

    @rule(of_one=st.sampled_from(OF_ONE), quotas=st.sampled_from(OWN_QUOTAS))
    def change_quotas(self, of_one: tuple[str, str], quotas: str | None) -> None:
        """Also while windows are closed; then only what is over cannot be told."""
        kind, name = of_one
        with suppress(ReservationsUnavailable):
            if quotas is None:
                self.house.dispatcher.unset_quotas(kind, name)
            else:
                self.house.dispatcher.set_quotas(kind, name, quotas)
        scope = scope_named("" if kind == "recipient" else kind, name)
        self.model.changed.add(scope)
        texts = quotas.split(",") if quotas else ()
        self.model.ledger.own[scope] = tuple(map(parse_quota, texts))

    @SOMETHING
    @rule(minutes=st.integers(1, 2))
    def wait(self, minutes: int) -> None:
        assert isinstance(self.house.clock, MovableClock)
        self.house.clock.advance(minutes * MINUTE)

    @SOMETHING
    @rule()
    def reconcile(self) -> None:
        self.house.parts.reconciler.reconcile(settle=timedelta(0))
        for scope in {scope for each in self.model.stored.values() for scope in each.wish.scopes}:
            self.model.ledger.places.setdefault(scope, {})
        self.model.lose(self.model.closed)
        self.model.closed = set()
        self.model.release_cancelled()

    @SOMETHING
    @rule()
    def reconcile_past_the_grace(self) -> None:
        self.end_duplicates()
        for _ in range(4):
            let_graces_pass(self.house)
            self.reconcile()
            if not pending_entries(self.house):
                break
        assert pending_entries(self.house) == []
        self.model.lose(set(range(self.house.settings.shards)))
        assert windows_of(self.house) == promised(self.house)

    @invariant()
    def the_windows_are_the_model(self) -> None:
        assert places_of(windows_of(self.house)) == self.model.windows()

    @invariant()
    def the_store_is_the_model(self) -> None:
        assert places_of(promised(self.house)) == self.model.store()
        assert len(self.house.rows()) == len(self.model.stored)

    @invariant()
    def what_is_held_is_the_model(self) -> None:
        held = {each.id for each in self.house.dispatcher.held()}
        assert held == {id_ for id_, each in self.model.stored.items() if each.is_held}

    @invariant()
    def no_quota_is_broken(self) -> None:
        for scope in self.model.ledger.places.keys() - self.model.changed:
            times = sorted(self.model.promised(scope).values())
            assert self.model.ledger.broken(scope, times) == []

    # Whether what the house answers is what its model expects; and the model learns it.

    def check_message(self, ask: Ask, message: Message, expected: Expected) -> None:
        if isinstance(expected, UUID):
            assert message.id == expected
            return
        assert to_ms(message.send_at) == expected
        orphan = self.model.orphans.get(self.model.duplicates(ask))
        if orphan is not None:
            assert message.id == orphan.message_id
        self.model.accept(ask, message)
        assert agree(message, self.model.stored[message.id])

    def check_error(self, ask: Ask, error: DispatcherError, expected: Expected) -> None:
        assert isinstance(expected, type)
        assert isinstance(error, expected)
        if isinstance(error, SlotRefused):
            self.model.ledger.check(self.model.wish(ask), self.model.start + ask.offset, error)

    def check_moved(self, message: Message, asked: int, latest: int) -> None:
        accepted, at = self.model.stored[message.id], to_ms(message.send_at)
        assert accepted.may_change
        if asked == accepted.at:
            assert at == asked
        else:
            assert not self.model.is_closed(accepted.wish)
            assert at == self.model.slot(accepted.wish, asked, latest, message.id)
            self.model.ledger.book(accepted.wish.scopes, message.id, at)
        accepted.at = at
        assert agree(message, accepted)

    def check_not_moved(
        self, message_id: UUID, asked: int, latest: int, error: DispatcherError
    ) -> None:
        accepted = self.model.stored[message_id]
        if isinstance(error, TooLate):
            assert not accepted.may_change
        elif isinstance(error, ReservationsUnavailable):
            assert self.model.is_closed(accepted.wish)
        elif isinstance(error, InvalidSendTime):
            assert asked < self.model.now or asked >= (accepted.expires or FAR_AWAY)
        else:
            assert isinstance(error, SlotRefused)
            assert self.model.slot(accepted.wish, asked, latest, message_id) is SlotRefused
            self.model.ledger.check(accepted.wish, asked, error, without=message_id)

    def check_none_of_many(self, results: list[Result], expected: list[Expected]) -> None:
        """A batch of which all or none was to be accepted, and was not."""
        reasons = [each.error for each in results if isinstance(each, Rejection)]
        assert not all(isinstance(each, BatchRefused) for each in reasons)
        for wanted, result in zip(expected, results, strict=True):
            if isinstance(wanted, UUID):
                assert isinstance(result, Message)
                assert result.id == wanted
                continue
            assert isinstance(result, Rejection)
            may_be = wanted | BatchRefused if isinstance(wanted, type) else BatchRefused
            assert isinstance(result.error, may_be)

    def check_each_of_many(
        self, some: list[Ask], results: list[Result], expected: list[Expected]
    ) -> None:
        for ask, wanted, result in zip(some, expected, results, strict=True):
            if isinstance(result, Message):
                self.check_message(ask, result, wanted)
            else:
                self.check_error(ask, result.error, wanted)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.reconcile_past_the_grace()
            self.the_windows_are_the_model()

    def end_duplicates(self) -> None:
        """What is left of keyed submits that died ends."""
        names = list(self.house.redis.scan_iter(match="*:duplicates:*"))
        if names:
            self.house.redis.delete(*names)
        self.model.orphans.clear()

    def pick(self, choice: int) -> tuple[UUID, Accepted]:
        """Return a message, mostly one that can still be changed."""
        known = list(self.model.stored.items())
        live = [each for each in known if each[1].may_change]
        among = live if live and choice % 10 else known
        return among[choice % len(among)]


@pytest.fixture(scope="module", params=[1, 4], ids=["one shard", "four shards"])
def house(
    request: pytest.FixtureRequest,
    redis_session: RedisServer,
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """Give a house whose scopes lie in so many shards."""
    path = tmp_path_factory.mktemp("state") / "store.db"
    shutil.copy(sqlite_template, path)
    chosen = SETTINGS | {"shards": request.param}
    with redis_session.client() as client:
        client.flushall()
    with house_on(redis_session, f"sqlite:///{path}", **chosen) as found:
        yield found


def test_a_house_does_what_the_model_does(house: House) -> None:
    class Machine(HouseMachine):
        pass

    Machine.house = house
    suppressed = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    play(Machine, stories=examples(30), steps=25, suppress_health_check=suppressed)
