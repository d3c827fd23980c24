"""Many drafts go in batches of 1,000: what fails in one leaves the others whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, overload

import pytest

from dispatcher import Draft, Message, Rejection
from dispatcher.errors import (
    IdempotencyConflict,
    InvalidDraft,
    OutcomeUnknown,
    QuotaExceeded,
    ReservationsUnavailable,
    StoreUnavailable,
)
from tests.submission.test_submit_many import LATER, MINUTE, draft, errors, fail
from tests.support.doubles import Between, raising
from tests.support.house import House

BATCH = 1_000


def told(results: Sequence[Message | Rejection]) -> list[object]:
    return [each.send_at if isinstance(each, Message) else type(each.error) for each in results]


def store_of(house: House, **actions: Callable[[], None]) -> None:
    own = vars(house.parts.own_transaction)
    own["_messages"] = Between(own["_messages"], before=actions)


def nth(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Return what does nothing but at its call of that number, from 1."""
    calls = iter(range(1, 1_000))
    return lambda: action() if next(calls) == number else None


def lines_in_use(house: House) -> set[object]:
    """Return the connections to Redis that nobody gave back to their pool."""
    return set(cast("Any", house.parts.redis.connection_pool)._in_use_connections)


def test_drafts_for_one_scope_see_those_of_earlier_batches(house: House) -> None:
    """One scope takes one a minute: what the batches together get is what one by one would."""
    spread = [draft("ada", send_at=LATER + n % 7 * MINUTE / 2) for n in range(BATCH - 1)]
    drafts = [*spread, draft("ben"), draft("ben"), draft("ada", send_at=LATER + MINUTE / 4),
              *(draft(f"to {n}") for n in range(BATCH)), draft("ben")]  # fmt: skip
    at_once = house.dispatcher.submit_many(drafts)
    expected = [None if n in {0, 2, 4, 6} else QuotaExceeded for n in range(BATCH - 1)]
    expected += [None, QuotaExceeded, QuotaExceeded, *[None] * BATCH, QuotaExceeded]
    assert errors(at_once) == expected
    assert house.reservations() == house.all_members()


@pytest.mark.long
def test_a_list_and_a_generator_are_answered_alike(house: House) -> None:
    drafts = [draft(f"to {n % 700}", send_at=LATER + n % 3 * MINUTE / 2) for n in range(2_100)]
    in_a_list = told(house.dispatcher.submit_many(drafts))
    for each in house.dispatcher.select():
        house.dispatcher.cancel(each.id)
    for each in house.dispatcher.select(status="scheduled"):
        house.dispatcher.cancel(each.id)
    assert told(list(house.dispatcher.submit_many(iter(drafts)))) == in_a_list


def test_a_batch_that_cannot_be_stored_frees_the_next_one(house: House) -> None:
    fail(house, StoreUnavailable("the line broke"))
    own = vars(house.parts.own_transaction)
    away = raising(*[StoreUnavailable("away") for _ in range(9)])
    own["_messages"] = Between(own["_messages"], before={"add": away})
    with pytest.raises(OutcomeUnknown):
        house.dispatcher.submit_many([draft(f"to {n}") for n in range(BATCH + 50)])
    assert len(house.all_members()) == BATCH, "reconcile decides about the batch nobody knows of"


def test_a_batch_that_cannot_be_booked_leaves_the_one_before_stored(house: House) -> None:
    lookups: list[int] = []

    def lose() -> None:
        lookups.append(1)
        if len(lookups) == 2:
            raise StoreUnavailable("gone for a moment")

    store_of(house, with_keys=lose)
    drafts = [draft(f"to {n}", idempotency_key=f"{n}") for n in range(BATCH + 50)]
    with pytest.raises(StoreUnavailable):
        house.dispatcher.submit_many(drafts)
    assert len(house.rows()) == BATCH
    assert house.reservations() == house.all_members()


class Torn(Sequence[Draft]):
    """Drafts whose reading breaks at the last one."""

    def __init__(self, drafts: list[Draft]) -> None:
        self._drafts = drafts

    def __len__(self) -> int:
        return len(self._drafts)

    @overload
    def __getitem__(self, place: int) -> Draft: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Draft]: ...
    def __getitem__(self, place: Any) -> Any:
        return self._drafts[place]

    def __iter__(self) -> Iterator[Draft]:
        yield from self._drafts[:-1]
        raise KeyboardInterrupt


def test_drafts_that_cannot_be_read_to_the_end_are_stored_up_to_the_last_batch(
    house: House,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        house.dispatcher.submit_many(Torn([draft(f"to {n}") for n in range(BATCH + 50)]))
    assert len(house.rows()) == BATCH
    assert house.reservations() == house.all_members()


def test_progress_that_raises_frees_the_batch_under_way(house: House) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        house.dispatcher.submit_many([draft(f"to {n}") for n in range(BATCH + 50)], progress=stop)
    assert len(house.rows()) == BATCH
    assert house.reservations() == house.all_members()


def test_answers_that_are_not_read_on_free_the_batch_under_way(house: House) -> None:
    answers = house.parts.batches.submit_each(
        [draft(f"to {n}") for n in range(2 * BATCH + 50)], total=None, progress=None
    )
    next(answers)
    del answers
    assert len(house.rows()) == BATCH
    assert house.reservations() == house.all_members()
    assert not lines_in_use(house)


def test_an_interrupt_while_a_batch_is_reserved_leaves_no_reservation(house: House) -> None:
    reserver = vars(house.parts.reserver)
    stop = nth(2, raising(KeyboardInterrupt()))
    reserver["_windows"] = Between(reserver["_windows"], before={"book": stop})
    with pytest.raises(KeyboardInterrupt):
        house.dispatcher.submit_many([draft(f"to {n}") for n in range(BATCH + 50)])
    assert len(house.rows()) == BATCH
    assert house.reservations() == house.all_members()
    assert not lines_in_use(house)


def test_keys_are_known_from_batch_to_batch(house: House) -> None:
    keyed = [draft(f"to {n}", idempotency_key=f"key {n}") for n in range(BATCH)]
    other = draft("to 7", idempotency_key="key 7", body={"other": 1})
    one_by_one = raising(*[AssertionError("stored one by one") for _ in range(9)])
    own = vars(house.parts.own_transaction)
    own["_messages"] = Between(own["_messages"], before={"add": one_by_one})
    results = house.dispatcher.submit_many(
        [*keyed, *keyed[:20], other, draft("else"), draft("there")]
    )
    assert errors(results) == [*[None] * (BATCH + 20), IdempotencyConflict, None, None]
    assert results[BATCH : BATCH + 20] == results[:20]
    assert len(house.rows()) == BATCH + 2


@pytest.mark.parametrize("key", [["key 7"], {}])
def test_a_key_that_is_no_text_refuses_its_draft_alone(house: House, key: Any) -> None:
    keyed = [draft(f"to {n}", idempotency_key=f"key {n}") for n in range(BATCH)]
    results = house.dispatcher.submit_many([*keyed, draft("to 7", idempotency_key=key), draft()])
    assert errors(results) == [*[None] * BATCH, InvalidDraft, None]


def test_a_draft_judged_again_is_not_overtaken_by_the_next_batch(house: House) -> None:
    """The second draft with a key has its turn, because the first was refused."""
    full = draft("ada", send_at=LATER)
    drafts = [
        full,
        draft("ada", send_at=LATER, idempotency_key="key"),
        draft("ada", send_at=LATER + MINUTE, idempotency_key="key"),
        *(draft(f"to {n}") for n in range(BATCH - 3)),
        draft("ada", send_at=LATER + 3 * MINUTE / 2),
    ]
    results = house.dispatcher.submit_many(drafts)
    assert errors(results)[:3] == [None, QuotaExceeded, None]
    assert errors(results)[-1] is QuotaExceeded


def test_redis_that_goes_away_leaves_what_was_answered(house: House) -> None:
    def close() -> None:
        for keys in house.parts.fence.keys:
            house.redis.delete(keys.epoch)

    store_of(house, add_together=nth(1, close))
    with pytest.raises(ReservationsUnavailable):
        house.dispatcher.submit_many([draft(f"to {n}") for n in range(2 * BATCH + 50)])
    assert len(house.rows()) >= BATCH
