"""Submit many: what submit does, for thousands; in order, all or none, and safe to run again."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import Connection, update

from dispatcher import (
    BatchRefused,
    Draft,
    IdempotencyConflict,
    InvalidDraft,
    InvalidSendTime,
    Message,
    OutcomeUnknown,
    Progress,
    QuotaExceeded,
    Rejection,
    Status,
    StoreUnavailable,
    UnknownChannel,
)
from dispatcher.submission import submitter
from dispatcher.submission.submitter import Submitter
from dispatcher.submission.validation import ValidDraft
from tests.support.doubles import Between, once, raising
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LATER = FAR + HOUR
TRICKY = [
    "tab\there",
    "line\nbreak\r",
    "back\\slash \\N \\. \\",
    "\u2028 \x85 \x7f",
    "",
    "👋 Grüße",
]


def draft(recipient: str = "ada", **asked: Any) -> Draft:
    values: dict[str, Any] = {
        "channel": "memory", "recipient": recipient, "body": BODY, "send_at": LATER,
    }  # fmt: skip
    return Draft(**(values | asked))


def drafts(count: int, **asked: Any) -> list[Draft]:
    return [draft(f"to {number}", **asked) for number in range(count)]


def errors(results: list[Message | Rejection]) -> list[type[Exception] | None]:
    return [type(each.error) if isinstance(each, Rejection) else None for each in results]


def fail(house: House, *with_errors: StoreUnavailable) -> None:
    """Let the statement that stores a batch fail so often."""
    store = house.parts.own_transaction._messages
    hidden = "_copy" if house.url.startswith("postgresql") else "_insert_together"
    real, failures = getattr(store, hidden), raising(*with_errors)

    def statement(*asked: Any, **named: Any) -> None:
        failures()
        real(*asked, **named)

    setattr(store, hidden, statement)


def test_answers_come_in_order_each_with_the_error_that_submit_raises(house: House) -> None:
    results = house.dispatcher.submit_many(
        [
            draft("ada"),
            draft("ada", send_at=LATER + MINUTE / 2),
            draft("ben", channel="nope"),
            draft("ben", send_at="tomorrow"),
            draft("ben", send_at=FAR - HOUR),
            draft("ben", body={"n": float("nan")}),
            draft("ben", send_window="00:00-24:00"),
            "no draft",  # type: ignore[list-item]  # what a caller may get wrong
            draft("ada", send_at=LATER + MINUTE),
        ]
    )
    assert errors(results) == [
        None, QuotaExceeded, UnknownChannel, InvalidSendTime, InvalidSendTime, InvalidDraft, None,
        InvalidDraft, None,
    ]  # fmt: skip
    refused = [each for each in results if isinstance(each, Rejection)]
    assert [each.number for each in refused] == [1, 2, 3, 4, 5, 7]
    first, conflict = results[0], refused[0].error
    assert isinstance(conflict, QuotaExceeded)
    assert isinstance(first, Message)
    assert conflict.conflicting == (first.id,)
    assert conflict.next_slot == LATER + MINUTE
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_submit_many_stores_the_rows_of_submit(house: House) -> None:
    asked: list[dict[str, Any]] = [
        {"body": {"text": text, "n": [1, 2.5, None, True, {"deep": text}]}} for text in TRICKY
    ]
    asked += [
        {"idempotency_key": "back\\slash", "expires_at": LATER + 2 * HOUR, "zone": "Europe/Berlin"},
        {"scope": "someone else's", "quiet_hours": "mon 01:00-02:00; sun 03:00-04:00"},
        {"quiet_hours": "none"},
        {"on_unknown": "hold"},
    ]
    singly = [house.submit(f"a {n}", send_at=LATER, **each) for n, each in enumerate(asked)]
    again = [each | {"idempotency_key": "other"} if "zone" in each else each for each in asked]
    together = house.dispatcher.submit_many([draft(f"a {n}", **each | {"send_at": LATER + HOUR})
                                             for n, each in enumerate(again)])  # fmt: skip
    differ = {"id", "send_at", "next_attempt_at", "enqueue_at", "created_at", "idempotency_key",
              "fingerprint"}  # fmt: skip
    names = [column for column in house.column_names() if column not in differ]
    for one, other in zip(singly, together, strict=True):
        assert isinstance(other, Message)
        assert house.columns(one, *names) == house.columns(other, *names)
        assert house.again(other) == other
        assert house.columns(other, "enqueue_at")[0] == other.send_at - house.settings.horizon


def test_drafts_of_one_scope_see_each_other(house: House) -> None:
    results = house.dispatcher.submit_many([draft() for _ in range(7)], on_conflict="shift")
    times = [each.send_at for each in results if isinstance(each, Message)]
    within_the_hour = [LATER + n * MINUTE for n in range(5)]
    assert times == [*within_the_hour, LATER + HOUR, LATER + HOUR + MINUTE]


def test_messages_within_the_horizon_are_published_in_groups(slow: House) -> None:
    now = slow.clock.now()
    near = [draft(f"near {n}", send_at=now + MINUTE / 6) for n in range(120)]
    results = slow.dispatcher.submit_many([*near, *drafts(3, send_at=now + HOUR)])
    assert errors(results) == [None] * 123
    assert slow.broker.llen("dispatcher.memory") == 3


def test_all_or_none_refuses_all_because_of_one(house: House) -> None:
    house.submit("taken", send_at=LATER)
    before = house.snapshot()
    results = house.dispatcher.submit_many(
        [*drafts(120), draft("taken"), draft("late", send_at=FAR - HOUR)], atomic=True
    )
    assert errors(results)[120:] == [BatchRefused, InvalidSendTime]
    fits = [*drafts(120), draft("taken")]
    results = house.dispatcher.submit_many(fits, atomic=True)
    assert errors(results) == [BatchRefused] * 120 + [QuotaExceeded]
    assert house.snapshot() == before
    results = house.dispatcher.submit_many(fits[:-1], atomic=True)
    assert errors(results) == [None] * 120
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_all_or_none_that_cannot_be_stored_leaves_nothing(house: House) -> None:
    before = house.snapshot()
    fail(house, *[StoreUnavailable("no", refused=True) for _ in range(9)])
    with pytest.raises(StoreUnavailable, match="nothing was stored"):
        house.dispatcher.submit_many(drafts(3), atomic=True)
    assert house.snapshot() == before


def test_all_or_none_of_which_nobody_knows_keeps_its_places(house: House) -> None:
    fail(house, *[StoreUnavailable("the line broke") for _ in range(9)])
    with pytest.raises(OutcomeUnknown):
        house.dispatcher.submit_many(drafts(3), atomic=True)
    assert len(house.all_members()) == 3, "reconcile decides, once the grace is over"


def test_interrupted_and_run_again_it_ends_as_if_run_once(house: House) -> None:
    keyed = [draft(f"to {n}", idempotency_key=f"key {n}") for n in range(1_500)]

    def broken() -> Iterator[Draft]:
        yield from keyed[:1_300]
        raise KeyboardInterrupt

    read: list[Message | Rejection] = []
    with pytest.raises(KeyboardInterrupt):
        read.extend(house.dispatcher.submit_many(broken()))
    assert len(read) == len(house.rows()) == 1_000
    results = house.dispatcher.submit_many(keyed)
    assert errors(results) == [None] * 1_500
    assert [each.id for each in read if isinstance(each, Message)] == [
        each.id for each in results[:1_000] if isinstance(each, Message)
    ]
    assert len(house.rows()) == 1_500
    assert house.reservations() == house.all_members()


@pytest.mark.parametrize("atomic", [False, True])
def test_what_an_interrupted_run_reserved_only_is_not_known_before(
    house: House, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    wanted = [draft(f"p{number}", idempotency_key=f"key {number}") for number in range(3)]

    def interrupted(name: str) -> None:
        if name == "submit.after_reserve":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(submitter, "fault", interrupted)
        house.dispatcher.submit_many(wanted)
    assert (len(house.all_members()), house.rows()) == (3, [])
    steps: list[Progress] = []
    for known in (0, 3):
        house.dispatcher.submit_many(wanted, atomic=atomic, progress=steps.append)
        assert (steps[-1].accepted, steps[-1].known) == (3, known)
    assert len(house.rows()) == 3


def test_a_key_within_a_batch_counts_once(house: House) -> None:
    results = house.dispatcher.submit_many(
        [
            draft("ada", idempotency_key="one"),
            draft("ada", idempotency_key="one"),
            draft("ada", idempotency_key="one", body={"other": 1}),
            draft("ada", idempotency_key="two"),
            draft("ada", idempotency_key="two", send_at=LATER + MINUTE),
        ]
    )
    assert errors(results) == [None, None, IdempotencyConflict, QuotaExceeded, None]
    assert results[0] == results[1]
    assert len(house.rows()) == 2


@pytest.mark.every_database
def test_a_key_that_somebody_takes_meanwhile_costs_only_its_own_draft(house: House) -> None:
    other: list[Message] = []

    def take() -> None:
        if not other:
            other.append(house.submit("ben", send_at=LATER, idempotency_key="key"))

    store = house.parts.own_transaction._messages
    vars(house.parts.own_transaction)["_messages"] = Between(store, after={"with_keys": take})
    same = draft("ben", idempotency_key="key")
    else_ = draft("eve", idempotency_key="key")
    ada = draft("ada", idempotency_key="ada")
    assert house.dispatcher.submit_many([ada, same, draft("cleo")])[1] == other[0]
    other.clear()
    house.dispatcher.cancel(next(iter(house.dispatcher.select(recipient="ben"))).id)
    dora = draft("dora", idempotency_key="dora")
    results = house.dispatcher.submit_many([dora, else_, draft("emil")])
    assert errors(results) == [None, IdempotencyConflict, None]
    assert house.reservations() == house.all_members()


def test_a_store_that_fails_once_is_asked_one_by_one(house: House) -> None:
    fail(house, StoreUnavailable("gone for a moment"))
    assert errors(house.dispatcher.submit_many(drafts(30))) == [None] * 30
    assert house.reservations() == house.all_members()


def test_progress_is_told_after_each_batch(house: House) -> None:
    told: list[Progress] = []
    house.submit("to 3", send_at=LATER)
    house.dispatcher.submit_many(drafts(1_100), progress=told.append)
    assert [(each.done, each.accepted, each.refused, each.total) for each in told] == [
        (1_000, 999, 1, 1_100), (1_100, 1_099, 1, 1_100),
    ]  # fmt: skip


def test_a_generator_is_read_while_its_answers_are_read(house: House) -> None:
    results = house.dispatcher.submit_many(each for each in drafts(2))
    assert house.rows() == []
    assert errors(list(results)) == [None, None]


def test_answers_that_nobody_reads_are_told_of(house: House) -> None:
    results = house.dispatcher.submit_many(each for each in drafts(2))
    with pytest.warns(RuntimeWarning, match="nothing was submitted"):
        del results
    assert house.rows() == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_memory_does_not_grow_with_the_number_of_drafts(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)  # lines that are kept take their room

    def peak(count: int, name: str) -> int:
        tracemalloc.start()
        made = (draft(f"{name} {number}") for number in range(count))
        assert (
            sum(isinstance(each, Message) for each in house.dispatcher.submit_many(made)) == count
        )
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1_000, "first")
    few, many = peak(1_000, "few"), peak(4_000, "many")
    assert many < 1.5 * few


def test_a_batch_that_took_long_looks_at_its_places_again(build: Build) -> None:
    house = build()
    taken: list[Message] = []
    store = house.parts.own_transaction._messages

    def lose_and_take() -> None:
        house.moved.advance(timedelta(seconds=5))
        house.redis.delete(house.keys("to 1").window("to 1"))
        taken.append(house.submit("to 1", send_at=LATER))

    vars(house.parts.own_transaction)["_messages"] = Between(
        store, before={"add_together": lose_and_take}
    )
    results = house.dispatcher.submit_many(drafts(3))
    assert errors(results) == [None, QuotaExceeded, None]
    assert house.reservations() == house.all_members()
    assert set(house.members("to 1")) == {taken[0].id}


@pytest.mark.every_database
def test_a_lost_reply_of_the_store_gives_no_place_back(house: House) -> None:
    """The rows were stored, the line broke, and the database stays away."""
    store = house.parts.own_transaction._messages
    hidden = "_copy" if house.url.startswith("postgresql") else "_insert_together"
    real = getattr(store, hidden)

    def lose_the_reply(*asked: Any, **named: Any) -> None:
        real(*asked, **named)
        raise StoreUnavailable("the line broke")

    setattr(store, hidden, lose_the_reply)
    own = vars(house.parts.own_transaction)
    away = raising(*[StoreUnavailable("away") for _ in range(9)])
    own["_messages"] = Between(own["_messages"], before={"add": away})
    with pytest.raises(OutcomeUnknown):
        house.dispatcher.submit_many(drafts(3))
    assert len(house.rows()) == 3
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_all_or_none_that_was_stored_unseen_and_sent_meanwhile_is_stored_once(house: House) -> None:
    """The line broke at the COMMIT, which came true after the batch was looked for."""
    store = house.parts.own_transaction._messages
    hidden = "_copy" if house.url.startswith("postgresql") else "_insert_together"
    real, calls = getattr(store, hidden), []
    messages = house.parts.database.tables.messages

    def lose_the_reply(*asked: Any, **named: Any) -> None:
        calls.append(named)
        real(*asked, **named)
        if len(calls) == 1:
            raise StoreUnavailable("the line broke")

    def send(connection: Connection) -> None:
        end = {"status": Status.SENT.value, "finished_at": messages.c.created_at}
        connection.execute(update(messages).values(**end))

    seen = iter([False])
    has = store.has
    vars(store)[hidden] = lose_the_reply
    vars(store)["has"] = lambda ids: next(seen, None) is None and has(ids)
    own = vars(house.parts.own_transaction)
    own["_messages"] = Between(
        store, after={"has": once(lambda: house.parts.database.transact(send))}
    )
    results = house.dispatcher.submit_many(drafts(3), atomic=True)
    assert errors(results) == [None] * 3
    assert [each.status for each in house.dispatcher.select()] == [Status.SENT] * 3
    assert len(calls) == 2


def test_all_or_none_refuses_a_key_that_is_used_twice(house: House) -> None:
    before = house.snapshot()
    results = house.dispatcher.submit_many(
        [draft("ada", idempotency_key="key"), draft("ben", idempotency_key="key")], atomic=True
    )
    assert errors(results) == [BatchRefused, IdempotencyConflict]
    assert house.snapshot() == before
    conflict = cast("Rejection", results[1]).error
    assert isinstance(conflict, IdempotencyConflict)
    assert conflict.message_id is None, "nobody would find the message of the earlier draft"
    assert "belongs to an earlier draft" in str(conflict)


def test_drafts_of_one_key_are_each_judged_twice_at_most(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal frees the key for the next one; else 1,000 such drafts take a minute."""
    house.submit("ada", send_at=LATER)
    judged: list[object] = []
    real = Submitter._validated

    def counted(submitter: Submitter, draft: Draft, *, now: datetime) -> ValidDraft:
        judged.append(draft)
        return real(submitter, draft, now=now)

    monkeypatch.setattr(Submitter, "_validated", counted)
    asked = [draft("ada", idempotency_key="key", body={"n": n}) for n in range(30)]
    assert set(errors(house.dispatcher.submit_many(asked))) == {QuotaExceeded}
    assert len(judged) <= 2 * len(asked)
