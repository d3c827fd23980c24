"""Each message is delivered by one worker at a time, and only when it is due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select, text

from dispatcher.message import Outcome, Status
from dispatcher.store.claims import Claim, Failure, Success
from dispatcher.store.database import Database
from dispatcher.store.engines.postgresql import now_read_late
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.store.messages import NewSlot, StoppedMessages
from dispatcher.store.schema import VOID
from tests.store.plans import asked_of, waiting
from tests.support import rows
from tests.support.examples import a_third_of
from tests.support.rows import claims_in, messages_in
from tests.support.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.every_database

MINUTE = timedelta(minutes=1)
RECEIPT = 'a "quoted" \\ receipt, {NULL} 👋'


def test_a_record_of_many_is_taken_for_each_by_its_own_token(database: Database) -> None:
    claims = [rows.claimed(database) for _ in range(6)]
    stale = claims[3]
    rows.age(database, stale.message.id)
    StoreMaintenance(database).rescue(limit=10)
    (current,) = claims_in(database).claim([stale.message.id])
    record(
        database,
        *(Success(claim, None) for claim in claims[:3]),
        *(Failure(claim, Outcome.TEMPORARY, "busy", MINUTE) for claim in claims[3:5]),
        Failure(claims[5], Outcome.PERMANENT, "no", None),
    )
    statuses = [messages_in(database).get(claim.message.id).status.value for claim in claims]
    assert statuses == ["sent", "sent", "sent", "sending", "scheduled", "failed"]
    assert rows.row(database, stale.message.id).claim_token == current.token


def lapsed(database: Database, **changes: Any) -> Claim:
    """Return a claim that ran out and was rescued."""
    claim = rows.claimed(database, **changes)
    rows.age(database, claim.message.id)
    assert len(StoreMaintenance(database).rescue(limit=10)) == 1
    return claim


def test_a_late_failure_changes_nothing_before_or_after_the_next_claim(database: Database) -> None:
    stale = lapsed(database)
    before = messages_in(database).get(stale.message.id)
    record(database, Failure(stale, Outcome.PERMANENT, "late", None))
    assert messages_in(database).get(stale.message.id) == before
    (current,) = claims_in(database).claim([stale.message.id])
    record(database, Failure(stale, Outcome.PERMANENT, "late", None))
    claims_in(database).put_back([(stale, timedelta(0))], enqueue_in=rows.SOON)
    row = rows.row(database, stale.message.id)
    assert (row.status, row.claim_token, row.attempt_count) == ("sending", current.token, 2)
    record(database, Success(current, None))
    record(database, Failure(current, Outcome.PERMANENT, "late", None))
    assert messages_in(database).get(stale.message.id).status is Status.SENT
    assert outcomes(database, stale.message.id) == ["permanent", "sent"]


def overtaken(database: Database, **changes: Any) -> tuple[Claim, Claim]:
    """Return two claims of one message: of a worker that froze, and of the next one."""
    frozen = lapsed(database, **changes)
    if changes.get("on_unknown") == "hold":
        StoppedMessages(database).release(messages_in(database).get(frozen.message.id))
    (current,) = claims_in(database).claim([frozen.message.id])
    return frozen, current


def outcomes(database: Database, message_id: UUID) -> list[str | None]:
    return [attempt.outcome for attempt in messages_in(database).attempts(message_id)]


ENDINGS: dict[str, Callable[[Database, Claim], object]] = {
    "sent": lambda database, claim: record(database, Success(claim, "again")),
    "temporary": lambda database, claim: record(
        database, Failure(claim, Outcome.TEMPORARY, "busy", MINUTE)
    ),
    "permanent": lambda database, claim: record(
        database, Failure(claim, Outcome.PERMANENT, "no", None)
    ),
    "unknown": lambda database, claim: record(
        database, Failure(claim, Outcome.UNKNOWN, "broken", None)
    ),
    "put back": lambda database, claim: claims_in(database).put_back(
        [(claim, MINUTE)], enqueue_in=rows.SOON
    ),
    "rescued": lambda database, _: StoreMaintenance(database).rescue(limit=10),
}
"""How the attempt ends that was under way when the success of an earlier one came to light."""


def record(database: Database, *told: Success | Failure) -> None:
    successes = [end for end in told if isinstance(end, Success)]
    failures = [end for end in told if isinstance(end, Failure)]
    claims_in(database).record(successes, failures, enqueue_in=rows.SOON)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("on_unknown", a_third_of(["retry", "hold"]))
def test_a_success_ends_the_message_whatever_comes_of_the_next_try(
    database: Database, ending: str, on_unknown: str
) -> None:
    frozen, current = overtaken(database, on_unknown=on_unknown, max_attempts=2)
    id_ = frozen.message.id
    for _ in range(2):  # run again after a lost reply
        record(database, Success(frozen, "late"))
    sent = messages_in(database).get(id_)
    assert (sent.status, sent.last_error) == (Status.SENT, None)
    assert outcomes(database, id_) == ["sent", "unknown"]
    assert claims_in(database).renew([current]) == set(), "it is not to be handed over any more"
    for _ in range(2):
        ENDINGS[ending](database, current)
    last = {"put back": [], "rescued": ["unknown"]}.get(ending, [ending])
    assert outcomes(database, id_) == ["sent", *last]
    counted = messages_in(database).get(id_)
    assert counted.attempt_count == 1 + len(last)
    assert (counted.status, counted.finished_at) == (Status.SENT, sent.finished_at)
    assert claims_in(database).claim([id_]) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_success_that_comes_after_the_next_try_ends_the_message(
    database: Database, ending: str
) -> None:
    frozen, current = overtaken(database, max_attempts=2)
    if ending == "rescued":
        rows.age(database, frozen.message.id)
    ENDINGS[ending](database, current)
    before = messages_in(database).get(frozen.message.id)
    record(database, Success(frozen, "late"))
    sent = messages_in(database).get(frozen.message.id)
    assert (sent.status, sent.last_error) == (Status.SENT, None)
    assert sent.attempt_count == before.attempt_count
    assert outcomes(database, sent.id)[0] == "sent"


def test_late_successes_are_recorded_with_the_others(database: Database) -> None:
    late = [overtaken(database)[0] for _ in range(3)]
    claims_ = [rows.claimed(database) for _ in range(3)] + late
    record(database, *(Success(claim, None) for claim in claims_))
    for claim in claims_:
        assert messages_in(database).get(claim.message.id).status is Status.SENT
    assert {tuple(outcomes(database, claim.message.id)) for claim in late} == {("sent", "unknown")}


def test_a_row_that_is_no_message_any_more_keeps_no_other_from_its_end(database: Database) -> None:
    """Its submit took it back after this claim, and a repeat of what ended that comes late."""
    void, sent, returned = (rows.claimed(database) for _ in range(3))
    record(database, Failure(void, Outcome.TEMPORARY, "no", timedelta(0)))
    rows.change(database, void.message.id, status=VOID)
    record(database, Success(sent, None), Success(void, None))
    store = claims_in(database)
    store.put_back([(void, timedelta(0)), (returned, timedelta(0))], enqueue_in=timedelta(0))
    statuses = [rows.row(database, claim.message.id).status for claim in (void, sent, returned)]
    assert statuses == [VOID, "sent", "scheduled"]


def test_the_permit_of_an_overtaken_try_counts_as_long_as_it_may_last(database: Database) -> None:
    frozen, current = overtaken(database)
    record(database, Success(frozen, None))
    pages = StoreMaintenance(database).permits(memory=MINUTE, batch=100)
    ages = {taken.token: taken.age for page in pages for taken in page}
    assert -rows.TTL <= ages[current.token] < -rows.TTL / 2


@pytest.mark.parametrize("end", [Status.CANCELLED, Status.EXPIRED])
def test_a_late_success_does_not_undo_the_end(database: Database, end: Status) -> None:
    """The place of the message may be another's by now."""
    expires_at = rows.now() + MINUTE if end is Status.EXPIRED else None
    claim = lapsed(database, expires_at=expires_at)
    if end is Status.CANCELLED:
        messages_in(database).cancel([claim.message.id])
    record(database, Success(claim, None))
    assert messages_in(database).get(claim.message.id).status is end
    assert outcomes(database, claim.message.id) == ["sent"]


def test_a_claimed_message_is_neither_changed_nor_moved(database: Database) -> None:
    """Its token is that of before the claim: only its status tells that it is sent as it was."""
    store, message = messages_in(database), rows.add_due(database)
    before = store.movable(message.id)
    claims_in(database).claim([message.id])
    body, later = {"text": "another"}, rows.now() + MINUTE
    for tokens in (None, {message.id: before.token}):
        stored, changed = store.update([message.id], tokens=tokens, body=body, priority=9)
        now = stored[message.id].message
        assert (now.body, now.priority, changed) == (message.body, message.priority, set())
    slot = NewSlot(before, later, later, later, later, None, None, None, None, "tail", None, 1)
    assert store.move([slot])[message.id].message.send_at == message.send_at


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("by", ["cancel", "claim"])
def test_a_call_that_meets_a_claim_leaves_it(database: Database, by: str) -> None:
    message = rows.add_due(database)
    call = getattr(messages_in(database) if by == "cancel" else claims_in(database), by)
    engine = database.engine.execution_options(isolation_level="READ COMMITTED")
    with ThreadPoolExecutor(1) as thread:
        with engine.begin() as worker:
            worker.execute(TAKE, {"id": message.id})
            coming = thread.submit(call, [message.id])
            wait_until(lambda: waiting(database) or coming.done())
        result = coming.result()
    assert result == [] if by == "claim" else result.newly_changed == set()
    row = rows.row(database, message.id)
    assert (row.status, row.claim_token) == ("sending", 1)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_present_of_a_claim_is_never_later_than_the_clock(database: Database) -> None:
    """By as much as it were later, a message would leave before its time."""
    query = select(now_read_late(), func.clock_timestamp())
    readings = [row for _ in range(20) for row in database.read(query)]
    assert [now - clock for now, clock in readings if now > clock] == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_put_back_during_a_rescue_counts_no_attempt(database: Database) -> None:
    """The statement that puts back waits for the rescue, and began before it was committed."""
    claim = rows.claimed(database, on_unknown="hold")
    rows.age(database, claim.message.id)
    message_id = {"id": claim.message.id}

    def put_back() -> None:
        claims_in(database).put_back([(claim, MINUTE)], enqueue_in=rows.SOON)

    worker = threading.Thread(target=put_back)
    engine = database.engine.execution_options(isolation_level="READ COMMITTED")
    with engine.begin() as rescue:
        rescue.execute(END_ATTEMPT, message_id)
        rescue.execute(HOLD, message_id)
        worker.start()
        wait_until(lambda: waiting(database))
    worker.join(DEADLINE)
    stored = messages_in(database).get(claim.message.id)
    assert (stored.status, stored.attempt_count) == (Status.SCHEDULED, 0)
    assert messages_in(database).attempts(stored.id) == []


HOLD = text(
    "UPDATE dispatcher_messages SET status = 'held', claim_expires_at = NULL, claimed_by = NULL, "
    "next_attempt_at = now() WHERE id = :id"
)
END_ATTEMPT = text(
    "UPDATE dispatcher_attempts SET finished_at = now(), outcome = 'unknown' WHERE message_id = :id"
)
"""What a rescue does, without its commit."""
TAKE = text(
    "UPDATE dispatcher_messages SET status = 'sending', claim_expires_at = now(), claimed_by = id, "
    "claim_token = 1, attempt_count = 1 WHERE id = :id"
)
"""What a claim does, without its attempt."""


def test_a_delay_is_told_by_the_claim_that_notes_it_and_by_no_older_one(database: Database) -> None:
    stale = lapsed(database)
    [claim] = claims_in(database).claim([stale.message.id])
    other, delayed_by = rows.claimed(database), {claim.message.id: "channel sms: 1/hour"}
    told = [
        claims_in(database)
        .put_back([(other, MINUTE), (late, MINUTE)], enqueue_in=rows.SOON, delayed_by=delayed_by)
        .told
        for late in (stale, claim, stale)
    ]
    assert told == [[], [claim.message.id], []]
    limits = [messages_in(database).get(it.message.id).delayed_by for it in (claim, other)]
    assert limits == ["channel sms: 1/hour", None]


def test_a_put_back_message_is_noted_as_enqueued_where_the_sweep_is_to_wait(
    database: Database,
) -> None:
    soon, late = rows.claimed(database), rows.claimed(database)
    claims_in(database).put_back([(soon, MINUTE)], enqueue_in=rows.SOON)
    claims_in(database).put_back([(late, MINUTE)], enqueue_in=-rows.SOON)
    assert rows.row(database, soon.message.id).enqueued_at is not None
    assert rows.row(database, late.message.id).enqueued_at is None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_claim_a_record_and_a_return_are_one_statement_each(database: Database) -> None:
    ids = [rows.add_due(database).id for _ in range(4)]
    mine = claims_in(database)
    with asked_of(database.engine) as asked:
        first, second, *others = mine.claim(ids)
        mine.record([Success(first, None), Success(second, RECEIPT)], [], enqueue_in=rows.SOON)
        mine.put_back([(claim, MINUTE) for claim in others], enqueue_in=rows.SOON)
    assert len(asked) == 3
    statuses = [messages_in(database).get(id_).status for id_ in ids]
    assert sorted(statuses) == ["scheduled", "scheduled", "sent", "sent"]
    claims = (first, second, *others)
    attempts = [messages_in(database).attempts(claim.message.id) for claim in claims]
    receipts = [[attempt.receipt for attempt in tries] for tries in attempts]
    assert receipts == [[None], [RECEIPT], [], []]


def test_a_renewed_claim_holds_for_its_whole_length_and_only_while_it_is_ours(
    database: Database,
) -> None:
    held, lost = rows.claimed(database), rows.claimed(database)
    rows.change(database, held.message.id, claim_expires_at=rows.now() + timedelta(seconds=1))
    rows.change(database, lost.message.id, claim_token=lost.token + 1)
    assert claims_in(database).renew([held, lost]) == {held.message.id}
    left = rows.row(database, held.message.id).claim_expires_at - rows.now()
    assert timedelta(seconds=25) < left <= rows.TTL
    mine = claims_in(database)
    mine.record([Success(held, None)], [], enqueue_in=rows.SOON)
    assert mine.renew([held]) == set()


def test_a_message_due_soon_is_claimed_with_its_wait(database: Database) -> None:
    soon = rows.add(database, send_at=rows.now() + timedelta(seconds=20))
    mine = claims_in(database)
    assert mine.claim([soon.id], ahead=timedelta(seconds=10)) == []
    [claim] = mine.claim([soon.id], ahead=timedelta(seconds=30))
    assert 10 < claim.due_in <= 20
    [attempt] = messages_in(database).attempts(soon.id)
    assert attempt.started_at == soon.send_at
    due = rows.claimed(database)
    assert (due.due_in, due.expires_in) == (0, None)


def test_a_put_back_of_an_early_claim_does_not_move_its_time(database: Database) -> None:
    message = rows.add(database)
    [claim] = claims_in(database).claim([message.id], ahead=timedelta(hours=2))
    claims_in(database).put_back([(claim, timedelta(0))], enqueue_in=rows.SOON)
    stored = messages_in(database).get(message.id)
    assert (stored.status, stored.next_attempt_at) == (Status.SCHEDULED, message.send_at)
    assert claims_in(database).claim([message.id]) == []
