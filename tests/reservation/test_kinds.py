"""A message that counts against several scopes at once, in one shard or in several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations, product
from typing import Any
from uuid import UUID

import pytest

from dispatcher.errors import DuplicateUnderWay, QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import AnyQuota, Quota
from dispatcher.redis.keys import shard_of
from dispatcher.reservation.booking import BookingRequest, Slot, Submit, Terms
from dispatcher.scope import OWN_SCOPE, Scope, counted
from tests.support.doubles import once
from tests.support.reserving import (
    SHARDS,
    Booking,
    Reserving,
    calls_of,
    cancel,
    little_at_once,
    move,
    ms,
    named,
    reserve,
)

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
Opened = Callable[..., Reserving]

KINDS: Mapping[str, Sequence[AnyQuota]] = {
    OWN_SCOPE: [Quota.parse("1/minute")],
    "recipient.sms": [Quota.parse("2/hour")],
    "channel.sms": [Quota.parse("3/second")],
    "tenant": [Quota.parse("4/hour")],
}
FURTHER = {kind: quotas for kind, quotas in KINDS.items() if kind != OWN_SCOPE}
SMS = shard_of("@channel.sms", SHARDS)
OWN, EARLY, LATE = [shard for shard in range(SHARDS) if shard != SMS]
"""Shards beside that of the channel: of recipients, and of tenants before and after it."""


ANN = named(OWN)
ACME = named(LATE, "@tenant:{}")


def terms(scope: str = ANN, *, channel: str = "sms", tenant: str | None = None) -> Terms:
    """Return what a message counts against, as the settings say it."""
    scopes = {} if tenant is None else {"tenant": tenant}
    return Terms(counted(KINDS, scope=scope, channel=channel, scopes=scopes))


@pytest.fixture
def real(opened: Opened) -> Reserving:
    """Give windows of all kinds, whose scripts the server knows."""
    return warm(opened(*KINDS[OWN_SCOPE], further=FURTHER), terms("warm", tenant="warm"))


def warm(real: Reserving, of: Terms) -> Reserving:
    """Let the server learn the scripts, and leave nothing."""
    far = NOON + timedelta(days=300)
    message_id = reserve(real.windows, new_id(), terms=of, send_at=far).message_id
    real.windows.withdraw([move(real.windows, message_id, terms=of, send_at=far + HOUR)])
    real.windows.next_slot(of, far)
    cancel(real.windows, message_id, of)
    return real


def book(real: Reserving, scope: str = ANN, send_at: datetime = NOON, **more: Any) -> Booking:
    asked = {name: more.pop(name) for name in ("latest", "submit") if name in more}
    return reserve(real.windows, new_id(), terms=terms(scope, **more), send_at=send_at, **asked)


def fill(real: Reserving, scope: Scope, *times: datetime) -> list[UUID]:
    """Let others book in this scope alone."""
    ids = [new_id() for _ in times]
    for message_id, time in zip(ids, times, strict=True):
        reserve(real.windows, message_id, terms=Terms((scope,)), send_at=time)
    return ids


def stands_at(real: Reserving, booking: Booking, at: datetime) -> bool:
    """Whether all windows of a booking have it, at that time and as pending."""
    member = booking.message_id.bytes
    windows = {
        (member, real.keys(scope.home).window(scope.name, scope.kind))
        for scope in booking.terms.scopes
    }
    placed = [real.places(scope).get(member) for scope in booking.terms.scopes]
    mine = {entry for entry in real.unconfirmed() if entry[0] == member}
    return placed == [ms(at)] * len(placed) and mine == windows


WHOLE, TENANT = terms().scopes[-1], terms(tenant=ACME).scopes[-1]


def test_a_scope_and_its_scope_on_a_channel_are_judged_in_one_call(opened: Opened) -> None:
    both = Terms(terms().scopes[:2])
    kinds = {kind: KINDS[kind] for kind in (OWN_SCOPE, "recipient.sms")}
    real = warm(opened(*kinds.pop(OWN_SCOPE), further=kinds), both)
    assert both.scopes == (Scope(OWN_SCOPE, ANN, ANN), Scope("recipient.sms", ANN, ANN))
    message_id = new_id()
    windows = real.windows
    calls = {
        "reserve": lambda: reserve(windows, message_id, terms=both, send_at=NOON),
        "shift": lambda: reserve(
            windows, new_id(), terms=both, send_at=NOON, latest=NOON + 2 * MINUTE
        ),
        "next slot": lambda: windows.next_slot(both, NOON),
        "release": lambda: cancel(windows, message_id, both),
    }
    for name, call in calls.items():
        assert calls_of(real.client, call) == 1, name
        if name == "reserve":
            assert stands_at(real, Booking(message_id, both, NOON), NOON)
    reserve(windows, message_id, terms=both, send_at=NOON - MINUTE)
    moving = move(windows, message_id, terms=both, send_at=NOON - 2 * MINUTE)
    assert calls_of(real.client, lambda: windows.withdraw([moving])) == 1


def test_scopes_of_several_shards_take_one_call_for_each_shard(real: Reserving) -> None:
    assert len({shard_of(scope.home, SHARDS) for scope in terms(tenant=ACME).scopes}) == 3
    bookings: list[Booking] = []
    assert calls_of(real.client, lambda: bookings.append(book(real, tenant=ACME))) == 3
    assert stands_at(real, bookings[0], NOON)
    assert calls_of(real.client, lambda: bookings.append(book(real, "else"))) == 2
    (booking, _) = bookings
    assert calls_of(real.client, lambda: cancel(real.windows, *booking[:2])) == 3
    assert real.places(TENANT) == {}


def test_windows_that_two_messages_share_are_booked_in_the_same_order(real: Reserving) -> None:
    """Else two that want the same last reservations could refuse each other."""

    def places(of: Terms) -> dict[Scope, int]:
        legs = enumerate(real.windows.legs(of))
        return {scope: place for place, leg in legs for scope in leg.scopes}

    every = [
        terms(named(person), tenant=named(tenant, "@tenant:{}"))
        for person, tenant in product(range(SHARDS), repeat=2)
    ]
    for one, other in combinations(map(places, every), 2):
        for first, second in combinations(one.keys() & other.keys(), 2):
            assert (one[first] - one[second]) * (other[first] - other[second]) >= 0


LOST = [terms(tenant=ACME).scopes[1], WHOLE, TENANT]


@pytest.mark.parametrize("lost", [LOST[:1], LOST[1:]], ids=str)
def test_a_member_that_one_window_lost_is_booked_again_at_the_time_of_the_others(
    real: Reserving, lost: list[Scope]
) -> None:
    booking = book(real, tenant=ACME)
    before = real.dump()
    lose(real, booking, lost)
    again = reserve(
        real.windows,
        booking.message_id,
        terms=booking.terms,
        send_at=NOON + HOUR,
        latest=NOON + 2 * HOUR,
    )
    assert again.send_at == NOON
    assert stands_at(real, booking, NOON)
    pending = {real.keys(scope.home).pending.encode() for scope in booking.terms.scopes}
    after = real.dump()
    assert {key: after[key] for key in after if key not in pending} == {
        key: before[key] for key in before if key not in pending
    }


@pytest.mark.parametrize("lost", LOST, ids=str)
def test_a_lost_member_whose_place_another_has_is_refused(real: Reserving, lost: Scope) -> None:
    booking = book(real, tenant=ACME)
    lose(real, booking, [lost])
    (quota,) = KINDS[lost.kind]
    others = fill(real, lost, *[NOON] * quota.count)
    with pytest.raises(QuotaExceeded) as refused:
        reserve(real.windows, booking.message_id, terms=booking.terms, send_at=NOON)
    assert refused.value.scope == str(lost)
    assert set(refused.value.conflicting) == set(others)
    assert set(real.places(lost)) == {other.bytes for other in others}


def lose(real: Reserving, booking: Booking, scopes: Sequence[Scope]) -> None:
    for scope in scopes:
        key = real.keys(scope.home).window(scope.name, scope.kind)
        assert real.client.zrem(key, booking.message_id.bytes) == 1


def test_a_duplicate_that_holds_its_places_stops_only_its_own_message_of_many(
    real: Reserving,
) -> None:
    """It has booked at noon in the first shard; the channel has room only a second later."""
    died, lives = Submit("key", "print"), Submit("key", "print")
    first = real.windows.legs(terms())[0]
    duplicate = new_id()
    request = BookingRequest(duplicate, terms(), ms(NOON), ms(NOON), died)
    asked = (first, request)
    assert real.windows.shards.book([asked]) == [Slot(duplicate, ms(NOON), request)]
    fill(real, WHOLE, NOON, NOON, NOON)
    latest = ms(NOON + HOUR)
    requests = [
        BookingRequest(new_id(), terms(), ms(NOON), latest, lives),
        BookingRequest(new_id(), terms(named(EARLY)), ms(NOON), latest),
    ]
    duplicate_under_way, shifted = real.windows.book(requests)
    assert isinstance(duplicate_under_way, DuplicateUnderWay)
    assert isinstance(shifted, Slot)
    assert shifted.request != requests[1], "at noon it was released"
    assert shifted.at_ms == ms(NOON + SECOND)
    assert real.places(terms().scopes[0])[duplicate.bytes] == ms(NOON), "it may be stored yet"
    with pytest.raises(DuplicateUnderWay):
        reserve(
            real.windows,
            new_id(),
            terms=terms(),
            send_at=NOON,
            latest=NOON + HOUR,
            submit=Submit("key", "print"),
        )


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "gives up meanwhile"])
def test_a_duplicate_that_is_changing_its_time_stops_only_its_own_message_of_many(
    real: Reserving, ends: bool
) -> None:
    """It has its new time in the first shard, and still the old one in that of the channel."""
    duplicate, theirs = new_id(), Submit("key", "print")
    first, second = real.windows.legs(terms())
    shards = real.windows.shards
    for leg, at, submit in ((first, NOON + MINUTE, theirs), (second, NOON, None)):
        shards.book([(leg, BookingRequest(duplicate, terms(), ms(at), ms(at), submit))])
    if ends:
        # Its reservations stay while ours is asked for on its own: we rely on them then.
        real_book = shards.book

        def book(requests: Sequence[Any], **more: Any) -> Any:
            answers = real_book(requests, **more)
            if len(requests) == 1:
                end()
            return answers

        end = once(lambda: shards.release_many([(first, duplicate.bytes, theirs)]))
        shards.book = book  # type: ignore[method-assign]  # this one, to act behind it
    requests = [
        BookingRequest(new_id(), terms(), ms(NOON), ms(NOON + HOUR), Submit("key", "print")),
        BookingRequest(new_id(), terms(named(EARLY)), ms(NOON), ms(NOON)),
    ]
    duplicate_under_way, other = real.windows.book(requests)
    assert isinstance(duplicate_under_way, DuplicateUnderWay)
    assert isinstance(other, Slot)
    assert other.at_ms == ms(NOON)
    assert (duplicate.bytes in real.places(terms().scopes[0])) is not ends


def test_a_stored_message_relies_on_its_duplicate_whatever_the_answer(real: Reserving) -> None:
    duplicate, ours = new_id(), Submit("key", "print")
    first, second = real.windows.legs(terms())
    for leg, at, submit in ((first, NOON + MINUTE, Submit("key", "print")), (second, NOON, None)):
        request = BookingRequest(duplicate, terms(), ms(at), ms(at), submit)
        real.windows.shards.book([(leg, request)])
    request = BookingRequest(new_id(), terms(), ms(NOON), ms(NOON), ours)
    [answer] = real.windows.book([request], is_stored=True)
    assert isinstance(answer, DuplicateUnderWay)
    assert real.client.hexists(first.keys.duplicates(ours.name), f"by:{ours.token}")
    [answer] = real.windows.book([request])
    assert isinstance(answer, DuplicateUnderWay)
    assert not real.client.hexists(first.keys.duplicates(ours.name), f"by:{ours.token}")


@pytest.mark.parametrize("most_read", [None, 9], ids=["in one call", "in several"])
@pytest.mark.parametrize(
    ("most", "kinds"),
    [(1, ()), (1, ("channel.sms",)), (9, ("channel.sms",))],
    ids=["one shard", "two", "the second one refuses"],
)
def test_each_of_many_moves_searches_as_if_its_own_time_were_free(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    kinds: Sequence[str],
    most_read: int | None,
) -> None:
    """What the search of one has found to be full is not full for the next one."""
    if most_read is not None:
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(most_read))
    real = opened(Quota(most, 60_000), further={kind: [Quota(1, 60_000)] for kind in kinds})
    of = Terms(counted([OWN_SCOPE, *kinds], scope="ada", channel="sms"))
    assert len(real.windows.legs(of)) == 1 + len(kinds)
    ids = [
        reserve(real.windows, new_id(), terms=of, send_at=NOON + n * MINUTE).message_id
        for n in range(30)
    ]
    asked, until = ms(NOON + SECOND), ms(NOON + HOUR)
    [refused] = real.windows.move_many([BookingRequest(ids[15], of, asked, asked)])
    assert isinstance(refused, QuotaExceeded)
    assert refused.next_slot == NOON + 15 * MINUTE
    moves = [BookingRequest(moved, of, asked, until) for moved in (ids[0], ids[15], ids[-1])]
    slots = real.windows.move_many(moves)
    assert [slot.at_ms for slot in slots if isinstance(slot, Slot)] == [
        ms(NOON + n * MINUTE) for n in (30, 15, 29)
    ]
