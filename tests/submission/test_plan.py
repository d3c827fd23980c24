"""A plan answers what submit many would, and leaves no trace of itself."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from dispatcher import (
    Draft,
    IdempotencyConflict,
    Message,
    Plan,
    Progress,
    QuotaExceeded,
    Rejection,
    ReservationsUnavailable,
    StoreUnavailable,
)
from dispatcher.message import new_id
from dispatcher.redis.scripts import replies_to
from dispatcher.reservation.booking import Submit
from dispatcher.reservation.plan import Copies
from dispatcher.submission.validation import validate_fields
from dispatcher.times.send_time import to_ms
from tests.submission.conftest import BATCH
from tests.support.examples import a_third_of
from tests.support.house import BODY, FAR, House
from tests.support.house_fixtures import Build, on_sqlite
from tests.support.reserving import reserve

pytestmark = [on_sqlite, pytest.mark.usefixtures("small_batches")]
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SETTINGS: dict[str, Any] = {
    "channels": {
        "memory": {"transport": "memory", "quotas": ["3/minute"], "quiet_hours": "14:00-15:00"}
    },
    "scopes": {"tenant": {"quotas": ["40/day in Europe/Berlin"]}},
}


def draft(recipient: str = "ada", seconds: float = 0, **more: Any) -> Draft:
    asked: dict[str, Any] = {"channel": "memory", "recipient": recipient, "body": BODY}
    asked["send_at"] = FAR + HOUR + timedelta(seconds=seconds)
    return Draft(**asked | more)


def mixed(rng: random.Random, count: int) -> list[Draft]:
    """Return drafts of every kind, many of which contend for the same places."""
    drafts = []
    for _ in range(count):
        key = f"key {rng.randrange(count // 4)}" if rng.random() < 0.4 else None
        # What has the same key mostly has the same content.
        same = random.Random(key) if key and rng.random() < 0.9 else rng  # noqa: S311 - a test
        more: dict[str, Any] = {"idempotency_key": key}
        if same.random() < 0.5:
            more["on_conflict"] = "shift"
            if same.random() < 0.5:
                more["latest"] = FAR + 3 * HOUR
        if same.random() < 0.1:
            more["scopes"] = {"tenant": f"tenant {same.randrange(2)}"}
        drafts.append(
            draft(f"person {same.randrange(40)}", same.randrange(-10, 10_800, 15), **more)
        )
        if rng.random() < 0.02:
            drafts.append(draft("", body={}))
        if rng.random() < 0.02:
            drafts.append(draft(send_at=FAR - HOUR))
    return drafts


def seen(rejection: Rejection) -> tuple[Any, ...]:
    return rejection.number, rejection.reason, getattr(rejection.error, "next_slot", None)


def plan_keys(house: House) -> list[bytes]:
    return cast("list[bytes]", house.redis.keys("*:plan:*"))


def assert_agree(plan: Plan, results: list[Message | Rejection], last: Progress) -> None:
    assert [seen(rejection) for rejection in plan.rejections] == [
        seen(result) for result in results if isinstance(result, Rejection)
    ]
    assert (plan.accepted, plan.known, plan.shifted) == (last.accepted, last.known, last.shifted)
    assert sum(plan.by_reason.values()) == last.refused == len(plan.rejections)


@pytest.mark.parametrize("seed", a_third_of(range(2)))
def test_it_answers_what_submit_many_then_does_and_leaves_everything_as_it_was(
    build: Build, seed: int
) -> None:
    house = build(**SETTINGS)
    rng = random.Random(seed)  # noqa: S311 - a test
    house.dispatcher.submit_many(mixed(rng, 100))
    stored = {row[0] for row in house.rows()}
    drafts = mixed(rng, 350)
    before = house.snapshot()
    plan = house.dispatcher.plan(drafts)
    assert house.snapshot() == before

    steps: list[Progress] = []
    results = house.dispatcher.submit_many(drafts, progress=steps.append)
    assert_agree(plan, results, steps[-1])
    messages = [result for result in results if isinstance(result, Message)]
    new = [message.send_at for message in messages if message.id not in stored]
    assert (plan.first_send_at, plan.last_send_at) == (min(new), max(new))
    assert plan.shifted > 10
    assert plan.known > 10
    kinds = {reason.split()[0] for reason in plan.by_reason}
    assert kinds >= {"QuotaExceeded", "QuietHours", "InvalidSendTime", "InvalidDraft"}
    assert "IdempotencyConflict" in kinds


def test_it_names_no_message_that_is_not_stored(build: Build) -> None:
    """Drafts of the plan have no ids yet: they are counted."""
    house = build(quotas="3/hour", scopes=SETTINGS["scopes"])
    first = house.submit("ada", send_at=FAR + HOUR)
    [refused] = house.dispatcher.plan([draft(seconds=120 * n) for n in range(1, 4)]).rejections
    assert isinstance(refused.error, QuotaExceeded)
    assert refused.error.conflicting == (first.id,)
    assert f"in the way: {first.id}, and 2 earlier drafts of the plan; the" in str(refused.error)
    for scopes in (None, {"tenant": "acme"}):  # in one shard, and in two
        plan = house.dispatcher.plan([draft("ben", scopes=scopes) for _ in range(5)])
        errors = [cast("QuotaExceeded", rejection.error) for rejection in plan.rejections]
        assert [error.conflicting for error in errors] == [(), ()]
        assert {error.next_slot for error in errors} == {FAR + 2 * HOUR}
        assert "in the way: 3 earlier drafts of the plan; the" in str(errors[0])
    again = pickle.loads(pickle.dumps(errors[0]))  # noqa: S301 - our own
    assert str(again) == str(errors[0])


def test_on_conflict_is_for_all_drafts(house: House) -> None:
    drafts = [draft() for _ in range(3)]
    assert house.dispatcher.plan(drafts).by_reason == {"QuotaExceeded 1/minute": 2}
    plan = house.dispatcher.plan(drafts, on_conflict="shift")
    assert (plan.accepted, plan.shifted, plan.rejections) == (3, 2, ())
    assert (plan.first_send_at, plan.last_send_at) == (FAR + HOUR, FAR + HOUR + 2 * MINUTE)
    assert plan.asked == {FAR + HOUR: 3}
    assert plan.promised == {FAR + HOUR + number * MINUTE: 1 for number in range(3)}


def test_a_generator_is_read_a_batch_at_a_time_and_progress_is_told(house: House) -> None:
    read = 0
    steps: list[tuple[Progress, int]] = []

    def drafts() -> Iterator[Draft]:
        nonlocal read
        for number in range(250):
            read += 1
            yield draft(f"person {number % 150}")

    plan = house.dispatcher.plan(drafts(), progress=lambda progress: steps.append((progress, read)))
    assert (plan.accepted, len(plan.rejections)) == (150, 100)
    assert [count for _, count in steps] == [100, 200, 250]
    assert [(progress.done, progress.total) for progress, _ in steps] == [
        (100, None), (200, None), (250, None),
    ]  # fmt: skip


@pytest.mark.parametrize("act", ["plan", "submit_many"])
def test_a_refusal_keeps_nothing_of_its_batch(house: House, act: str) -> None:
    """Its traceback would: the frames of a batch have all drafts of it."""
    refused = [draft(body=5), draft(send_at="soon")]
    result = getattr(house.dispatcher, act)([draft(), *refused, draft("ben", 6_000)])
    rejections = result.rejections if isinstance(result, Plan) else result[1:3]
    assert [rejection.number for rejection in rejections] == [1, 2]
    for rejection in rejections:
        error = rejection.error
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_a_key_of_an_earlier_batch_is_known_and_other_content_is_a_conflict(house: House) -> None:
    filler = [draft(f"person {number}") for number in range(BATCH)]
    drafts = [
        *(draft("a", idempotency_key="a"), draft("b"), draft("b", 1, idempotency_key="b")),
        *filler,
        *(draft("a", idempotency_key="a"), draft("a", idempotency_key="a", body={})),
        draft("b", 61, idempotency_key="b", body={}),
    ]
    before = house.snapshot()
    plan = house.dispatcher.plan(drafts)
    assert house.snapshot() == before
    assert plan.known == 1
    assert [(rejection.number, rejection.reason) for rejection in plan.rejections] == [
        (2, "QuotaExceeded 1/minute"), (BATCH + 4, "IdempotencyConflict"),
    ]  # fmt: skip
    conflict = plan.rejections[1].error
    assert isinstance(conflict, IdempotencyConflict)
    assert conflict.message_id is None, "nobody would find the message of the earlier draft"
    assert str(pickle.loads(pickle.dumps(conflict))) == str(conflict)  # noqa: S301 - our own
    steps: list[Progress] = []
    assert_agree(plan, house.dispatcher.submit_many(drafts, progress=steps.append), steps[-1])
    [again] = house.dispatcher.plan([draft("a", idempotency_key="a", body={"b": 1})]).rejections
    assert isinstance(again.error, IdempotencyConflict)
    assert again.error.message_id == house.dispatcher.list(recipient="a").messages[0].id


def test_a_submit_under_way_with_the_same_key_shares_its_place(house: House) -> None:
    one = draft(idempotency_key="k")
    valid = validate_fields(one, settings=house.settings, now=house.clock.now())
    reserve(house.parts.windows,
        new_id(), terms=valid.terms, send_at=valid.send_at,
        submit=Submit("k", valid.fingerprint or ""),
    )  # fmt: skip
    before = house.snapshot()
    plan = house.dispatcher.plan([one])
    assert (plan.accepted, plan.known) == (1, 1)
    [other] = house.dispatcher.plan([draft(idempotency_key="k", body={})]).rejections
    assert isinstance(other.error, IdempotencyConflict)
    assert house.snapshot() == before


def test_every_key_has_a_life_that_is_renewed_while_it_works(house: House) -> None:
    lives: list[int] = []

    def drafts() -> Iterator[Draft]:
        yield from (draft("ada", 60 * number, idempotency_key="a") for number in range(BATCH))
        for name in plan_keys(house):
            house.redis.pexpire(name, 5_000)
        house.moved.advance(5 * MINUTE)
        yield from (draft("ben", 60 * number) for number in range(BATCH))
        lives.extend(house.redis.pttl(name) for name in plan_keys(house))
        yield draft("ada")

    house.submit("ada", send_at=FAR + HOUR + 1_000 * HOUR)
    house.dispatcher.plan(drafts())
    assert len(lives) >= 3
    assert min(lives) > 500_000
    assert plan_keys(house) == []


def test_copies_that_were_lost_are_an_error(house: House) -> None:
    def drafts() -> Iterator[Draft]:
        yield from (draft("ada", 60 * number) for number in range(BATCH))
        house.redis.delete(*plan_keys(house))
        yield draft("ada")

    with pytest.raises(ReservationsUnavailable, match="copies of the windows are gone"):
        house.dispatcher.plan(drafts())
    assert plan_keys(house) == []


def test_nothing_stays_after_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.submit("ada", send_at=FAR + HOUR)
    before = house.snapshot()

    def broken() -> Iterator[Draft]:
        yield from (
            draft("ada", 60 * number, idempotency_key=f"{number}") for number in range(BATCH)
        )
        assert len(plan_keys(house)) >= 2
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        house.dispatcher.plan(broken())
    assert house.snapshot() == before

    def fail(*_: object) -> None:
        raise StoreUnavailable("broken")

    # What reserve left has no life yet, and the copied duplicates are still there.
    monkeypatch.setattr(Copies, "_renew", fail)
    with pytest.raises(StoreUnavailable):
        house.dispatcher.plan([draft("ada", 300, idempotency_key="k")])
    assert house.snapshot() == before


def test_a_closed_shard_is_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def booked(*_: object) -> None:
        raise AssertionError("a part of a window was taken for all of it")

    monkeypatch.setattr(Copies, "_copy_duplicates", booked)
    house.redis.delete(house.keys("ada").epoch)
    before = house.snapshot()
    with pytest.raises(ReservationsUnavailable, match="being rebuilt from SQL"):
        house.dispatcher.plan([draft("ada")])
    assert house.snapshot() == before


def test_a_large_window_is_copied_in_bounded_steps_while_others_leave_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(quotas="10000/hour")
    window = house.keys("ada").window("ada")
    start = to_ms(FAR + HOUR)
    house.redis.zadd(window, {new_id().bytes: start + 100 * n for n in range(20_000)})
    steps: list[int] = []

    def asked(client: Any, commands: Any) -> list[Any]:
        commands = [*commands]
        if commands and commands[0][0] == "ZSCAN":
            steps.append(len(commands))
            house.redis.zremrangebyrank(window, 0, 9)
        return replies_to(client, commands)

    monkeypatch.setattr("dispatcher.reservation.plan.replies_to", asked)
    missing: list[set[bytes]] = []
    renew = Copies._renew

    def compare(self: Copies, copies: Any) -> None:
        [copy] = copies
        kept = set(cast("list[bytes]", house.redis.zrange(window, 0, -1)))
        missing.append(kept - set(cast("list[bytes]", house.redis.zrange(copy, 0, -1))))
        renew(self, copies)

    monkeypatch.setattr(Copies, "_renew", compare)
    plan = house.dispatcher.plan([draft("ada", 600)])
    assert sum(steps) >= 15
    assert missing == [set()]
    assert plan.by_reason == {"QuotaExceeded 10000/hour": 1}
    assert plan_keys(house) == []
