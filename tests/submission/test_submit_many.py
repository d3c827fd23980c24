"""Submit many: what submit does, for thousands; in order, all or none, and safe to run again."""

from __future__ import annotations

import logging
import signal
import threading
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from functools import partial
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
    ReservationsUnavailable,
    Status,
    StoreUnavailable,
    UnknownChannel,
)
from tests.submission.conftest import BATCH
from tests.support.doubles import Between, once, raising
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build, on_postgresql
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("small_batches")
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


def drafts(count: int, **asked: Any) -> list[Draft]:
    return [draft(f"to {number}", **asked) for number in range(count)]


def errors(results: list[Message | Rejection]) -> list[type[Exception] | None]:
    return [type(result.error) if isinstance(result, Rejection) else None for result in results]


def fail(
    house: House, *, before: Callable[[], object] = dict, after: Callable[[], object] = dict
) -> None:
    """Let something happen before or after the statement that stores a batch."""
    real = house.parts.database.transact

    def transact(work: Callable[[Connection], Any], *, once: bool = False) -> Any:
        if not once:  # only a batch is stored so
            return real(work)
        before()
        real(work, once=True)
        after()
        return None

    vars(house.parts.database)["transact"] = transact


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
    refused = [result for result in results if isinstance(result, Rejection)]
    assert [rejection.number for rejection in refused] == [1, 2, 3, 4, 5, 7]
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
    singly = [house.submit(f"a {n}", send_at=LATER, **wish) for n, wish in enumerate(asked)]
    again = [wish | {"idempotency_key": "other"} if "zone" in wish else wish for wish in asked]
    together = house.dispatcher.submit_many([draft(f"a {n}", **wish | {"send_at": LATER + HOUR})
                                             for n, wish in enumerate(again)])  # fmt: skip
    differ = {"id", "send_at", "next_attempt_at", "enqueue_at", "created_at", "idempotency_key",
              "fingerprint"}  # fmt: skip
    names = [*{*house.tables.messages.c.keys()} - differ]
    for one, other in zip(singly, together, strict=True):
        assert isinstance(other, Message)
        assert house.columns(one, *names) == house.columns(other, *names)
        assert house.again(other) == other
        assert house.columns(other, "enqueue_at")[0] == other.send_at - house.settings.horizon


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
    twice = [draft("taken", idempotency_key="key")] * 2
    results = house.dispatcher.submit_many(twice, atomic=True)
    assert errors(results) == [QuotaExceeded, BatchRefused], "a repeat is not judged on its own"
    assert house.snapshot() == before
    results = house.dispatcher.submit_many(fits[:-1], atomic=True)
    assert errors(results) == [None] * 120
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_all_or_none_that_cannot_be_stored_leaves_nothing(house: House) -> None:
    before = house.snapshot()
    fail(house, before=raising(*[StoreUnavailable("no", refused=True) for _ in range(9)]))
    with pytest.raises(StoreUnavailable, match="nothing was stored"):
        house.dispatcher.submit_many(drafts(3), atomic=True)
    assert house.snapshot() == before


@pytest.mark.parametrize("atomic", [False, True])
def test_what_an_interrupted_run_reserved_only_is_neither_known_nor_shifted(
    house: House, atomic: bool
) -> None:
    """A length counts from the repeat, and the reservation is that of the first submit."""
    asked: dict[str, Any] = {"send_at": None, "send_in": HOUR}
    keyed = [draft(f"p{number}", idempotency_key=f"key {number}", **asked) for number in range(3)]
    interrupt = {"add_together": raising(KeyboardInterrupt())}
    house.between("own_transaction", "messages", before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        house.dispatcher.submit_many(keyed)
    assert (len(house.all_members()), house.rows()) == (3, [])
    house.moved.set_wall(house.moved.now() + MINUTE)
    steps: list[Progress] = []
    for known in (0, 3):
        house.dispatcher.submit_many(keyed, atomic=atomic, progress=steps.append)
        assert (steps[-1].accepted, steps[-1].known) == (3, known)
    assert [message.asked_at for message in house.dispatcher.select()] == [None] * 3
    assert house.reservations() == house.all_members()


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

    def taken_by_another() -> None:
        take = once(lambda: other.append(house.submit("ben", send_at=LATER, idempotency_key="key")))
        house.between("own_transaction", "messages", after={"with_keys": take})

    taken_by_another()
    same = draft("ben", idempotency_key="key")
    else_ = draft("eve", idempotency_key="key")
    ada = draft("ada", idempotency_key="ada")
    assert house.dispatcher.submit_many([ada, same, draft("cleo")])[1] == other[0]
    house.dispatcher.cancel(next(iter(house.dispatcher.select(recipient="ben"))).id)
    taken_by_another()
    dora = draft("dora", idempotency_key="dora")
    results = house.dispatcher.submit_many([dora, else_, draft("emil")])
    assert errors(results) == [None, IdempotencyConflict, None]
    assert house.reservations() == house.all_members()


def test_a_generator_is_read_while_its_answers_are_read(house: House) -> None:
    results = house.dispatcher.submit_many(draft for draft in drafts(2))
    assert house.rows() == []
    assert errors(list(results)) == [None, None]


def test_answers_that_nobody_reads_are_told_of(house: House) -> None:
    results = house.dispatcher.submit_many(draft for draft in drafts(2))
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
        results = house.dispatcher.submit_many(made)
        assert sum(isinstance(result, Message) for result in results) == count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(BATCH, "first")
    few, many = peak(BATCH, "few"), peak(4 * BATCH, "many")
    assert many < 1.5 * few


@pytest.mark.every_database
def test_a_lost_reply_of_the_store_gives_no_place_back(house: House) -> None:
    """The rows were stored, the line broke, and the database stays away."""
    fail(house, after=raising(*[StoreUnavailable("the line broke") for _ in range(9)]))
    away = raising(*[StoreUnavailable("away") for _ in range(9)])
    house.between("own_transaction", "messages", before={"add": away})
    with pytest.raises(OutcomeUnknown):
        house.dispatcher.submit_many(drafts(3))
    assert len(house.rows()) == 3
    assert house.reservations() == house.all_members()


@pytest.mark.every_database
def test_all_or_none_that_was_stored_unseen_and_sent_meanwhile_is_stored_once(house: House) -> None:
    """The line broke at the COMMIT, which came true after the batch was looked for."""
    store, calls = house.parts.own_transaction.messages, list[None]()
    messages = house.parts.database.tables.messages
    broken = raising(StoreUnavailable("the line broke"))
    fail(house, before=lambda: calls.append(None), after=broken)

    def send(connection: Connection) -> None:
        end = {"status": Status.SENT.value, "finished_at": messages.c.created_at}
        connection.execute(update(messages).values(**end))

    seen = iter([False])
    has = store.has
    vars(store)["has"] = lambda ids: next(seen, None) is None and has(ids)
    sent = once(lambda: house.parts.database.transact(send))
    house.between("own_transaction", "messages", after={"has": sent})
    results = house.dispatcher.submit_many(drafts(3), atomic=True)
    assert errors(results) == [None] * 3
    assert [message.status for message in house.dispatcher.select()] == [Status.SENT] * 3
    assert len(calls) == 2


def test_all_or_none_that_repeats_a_key_is_answered_though_the_store_goes_away(
    house: House,
) -> None:
    """It is stored by then: an error would say that nothing was."""
    away = {"with_keys": raising(StoreUnavailable("away"))}
    go_away = partial(house.between, "own_transaction", "messages", before=away)
    house.between("own_transaction", "messages", after={"add_together": go_away})
    twice = [draft("ada", idempotency_key="key")] * 2
    first, second = house.dispatcher.submit_many(twice, atomic=True)
    assert first == second
    assert len(house.rows()) == 1


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


BREAKS: dict[str, tuple[str, str, str, BaseException]] = {
    "the look-up of its keys": ("own_transaction", "messages", "with_keys", StoreUnavailable("")),
    "its reservations": ("reserver", "windows", "book", ReservationsUnavailable("")),
    "an interrupt": ("reserver", "windows", "book", KeyboardInterrupt()),
    "its INSERTs": ("own_transaction", "messages", "add_together", KeyboardInterrupt()),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_breaks_a_batch_leaves_the_one_before_stored(house: House, what: str) -> None:
    use_case, part, call, error = BREAKS[what]
    calls = list[None]()

    def break_the_second() -> None:
        calls.append(None)
        if len(calls) > 1:
            raise error

    house.between(use_case, part, before={call: break_the_second})
    with pytest.raises(type(error)):
        house.dispatcher.submit_many(
            [draft(f"to {n}", idempotency_key=f"{n}") for n in range(BATCH + 50)]
        )
    assert len(house.rows()) == BATCH
    if what != "its INSERTs":  # whose outcome is unknown: reconcile looks
        assert house.reservations() == house.all_members()
    assert not cast("Any", house.parts.redis.connection_pool)._in_use_connections


@pytest.mark.parametrize("key", [["key 7"], {}])
def test_a_key_that_is_no_text_refuses_its_draft_alone(house: House, key: Any) -> None:
    keyed = [draft(f"to {n}", idempotency_key=f"key {n}") for n in range(BATCH)]
    results = house.dispatcher.submit_many([*keyed, draft("to 7", idempotency_key=key), draft()])
    assert errors(results) == [*[None] * BATCH, InvalidDraft, None]


class OutOfTime(Exception):
    """What a signal raises, such as Celery's at a soft time limit."""


def accepted(result: Message | Rejection) -> Message:
    """Return the message of a draft that was not refused."""
    assert isinstance(result, Message)
    return result


def test_a_batch_of_which_a_duplicate_stored_one_is_not_taken_for_stored(house: House) -> None:
    """The duplicate relies on the place, and so on the id, that the batch has booked."""
    batch = [draft("ada", idempotency_key="key"), draft("ben"), draft("cyd")]
    duplicates: list[Message] = []
    duplicate = once(
        lambda: duplicates.extend(map(accepted, house.dispatcher.submit_many(batch[:1])))
    )
    house.between("own_transaction", "messages", before={"add_together": duplicate})
    with pytest.raises(StoreUnavailable):
        house.dispatcher.submit_many(batch, atomic=True)
    assert [row[0] for row in house.rows()] == [message.id for message in duplicates]
    assert house.members("ada").keys() == {duplicates[0].id}
    assert house.members("ben") == house.members("cyd") == {}

    again = house.dispatcher.submit_many(batch, atomic=True)
    assert again[0] == house.again(duplicates[0])
    assert {row[0] for row in house.rows()} == {accepted(answer).id for answer in again}


def test_a_batch_that_may_be_under_way_yet_is_not_said_to_be_refused(house: House) -> None:
    """The line broke in its first try; the others are refused, for the first one's locks say."""
    answers = [None, False, False]
    busy = {"add_together": lambda *_, **__: answers.pop(0)}
    house.between("own_transaction", "messages", instead=busy)
    with pytest.raises(OutcomeUnknown):
        house.dispatcher.submit_many([draft("ada"), draft("ben")], atomic=True)
    assert not answers
    assert len(house.members("ada")) == len(house.members("ben")) == 1  # until reconcile looks


@on_postgresql
@pytest.mark.parametrize("asked", ["", "&client_encoding=latin1"])
def test_letters_arrive_whatever_encoding_the_line_was_to_have(
    build: Build, database_url: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    house = build(database_url=database_url + asked)
    (message,) = house.dispatcher.submit_many([draft("Jörg", body={"text": "Grüße"})])
    assert isinstance(message, Message)
    assert house.sql("SELECT recipient, body ->> 'text' FROM dispatcher_messages") == [
        ("Jörg", "Grüße")
    ]


@on_postgresql
def test_a_copy_that_was_stopped_leaves_no_line_in_the_midst_of_it(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(*_: object) -> None:
        raise OutOfTime

    def stop_who_waits() -> None:
        wait_until(lambda: house.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with house.database.engine.connect() as other:
            other.exec_driver_sql("BEGIN")
            other.exec_driver_sql("LOCK TABLE dispatcher_messages")
            stopper = threading.Thread(target=stop_who_waits)
            stopper.start()
            with pytest.raises(OutOfTime):
                house.dispatcher.submit_many(drafts(20))
            stopper.join()
            other.exec_driver_sql("ROLLBACK")
    finally:
        signal.signal(signal.SIGUSR1, before)
    house.dispatcher.submit_many([draft(f"later {number}") for number in range(20)])
    assert len(house.rows()) == 20
    assert "not stored together" not in caplog.text


@pytest.mark.parametrize("atomic", [False, True])
def test_a_duplicate_known_late_is_the_answer_of_its_draft(build: Build, atomic: bool) -> None:
    house, other = build(), build()
    told: list[Message] = []

    def duplicate() -> None:
        told.append(other.submit("ada", send_at=LATER, idempotency_key="key"))
        house.redis.delete(house.keys("ada").duplicates("key"))

    house.swap("reserver", Between(house.parts.reserver, before={"reserve": once(duplicate)}))
    known_late = draft("ada", idempotency_key="key")  # when it has no slot
    results = house.dispatcher.submit_many([draft("bob"), known_late], atomic=atomic)
    assert results[1] == told[0]
    assert len(house.rows()) == 2
    assert house.reservations() == house.all_members()
