"""``dispatcher show`` tells the whole story, at each point of a message's way."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Message, PermanentFailure, TemporaryFailure
from dispatcher.times.send_time import as_text
from tests.cli.conftest import Run, house_with
from tests.cli.test_commands import MESSAGE_FIELDS, STORY_FIELDS
from tests.support.house import House

HOUR = timedelta(hours=1)
ATTEMPT_FIELDS = {"token", "started_at", "finished_at", "outcome", "error", "receipt"}


def told(run: Run, message: Message) -> str:
    ran = run("show", str(message.id))
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def test_a_shift_tells_from_when_and_in_which_scopes_it_has_its_place(
    house: House, run: Run
) -> None:
    first = house.submit(send_in=HOUR)
    shifted = house.submit(send_at=first.send_at, on_conflict="shift")
    out = told(run, shifted)
    enqueue_at = shifted.send_at - house.settings.horizon
    asked, enqueued = (f"{instant:%Y-%m-%d %H:%M}" for instant in (first.send_at, enqueue_at))
    assert f"asked for  {asked}" in out
    assert f"from {asked}" in out.split("shifted", 1)[1].splitlines()[0]
    assert "of ada" in out
    assert f"next: the sweep enqueues it at {enqueued}" in out
    data = run("show", str(shifted.id), "--json").data
    assert data["asked_at"] == as_text(first.send_at)
    assert data["reservations"] == [{"scope": "ada", "at": as_text(shifted.send_at)}]
    assert data["next"]["at"] == as_text(shifted.send_at - house.settings.horizon)


@house_with(scopes={name: {"quotas": "7/hour"} for name in ("tenant", "order")})
def test_scopes_are_shown_as_count_takes_them(house: House, run: Run) -> None:
    message = house.submit(send_in=HOUR, scopes={"tenant": "acme", "order": "17"})
    lines = told(run, message).splitlines()
    [shown] = [line for line in lines if line.startswith("scopes")]
    assert set(shown.removeprefix("scopes").strip().split(", ")) == {"tenant=acme", "order=17"}


def test_the_story_of_a_moved_message_keeps_the_time_of_its_submit(house: House, run: Run) -> None:
    """The store keeps the last time that was asked for, and not that of the submit."""
    house.submit(send_in=2 * HOUR)
    message = house.submit(send_in=HOUR)
    at = message.send_at + HOUR + timedelta(minutes=5)
    run("reschedule", str(message.id), "--send-at", at.isoformat(), "--on-conflict", "shift")
    happened = told(run, message).split("what happened", 1)[1].splitlines()
    [submitted] = [line for line in happened if "submitted" in line]
    assert submitted.rstrip().endswith("submitted")
    [asked] = [line for line in happened if "asked for" in line]
    assert f"{at:%Y-%m-%d %H:%M:%S}" in asked


def test_each_try_is_told_with_what_came_of_it_and_what_comes_next(house: House, run: Run) -> None:
    busy = TemporaryFailure("the provider is busy", retry_after=timedelta(0))
    house.fail_sends(busy, PermanentFailure("no such [red]number"))
    message = house.submit()
    assert "next: it is enqueued; it is due at" in told(run, message)
    house.deliver(message)
    house.redis.delete(*house.redis.keys("*:permits:*:log*"))
    house.change([message], next_attempt_at=house.database_time())
    house.deliver(message)
    out = told(run, message)
    lines = [line.split(maxsplit=3)[3] for line in out.splitlines() if " UTC " in line]
    assert "attempt 1" in out
    assert any(line.startswith("temporary") and "is busy" in line for line in lines)
    assert any(line.startswith("permanent") and "no such [red]number" in line for line in lines)
    assert "next: dispatcher retry gives it further attempts" in out
    data = run("show", str(message.id), "--json").data
    assert set(data) == MESSAGE_FIELDS | STORY_FIELDS
    assert [set(attempt) for attempt in data["attempts"]] == [ATTEMPT_FIELDS] * 2
    outcomes = [(attempt["token"], attempt["outcome"]) for attempt in data["attempts"]]
    assert outcomes == [(1, "temporary"), (2, "permanent")]


def test_when_celery_was_given_it_is_told_among_what_happened(house: House, run: Run) -> None:
    """Submitted, enqueued by the sweep, tried, enqueued again: in the order of their times."""
    house.fail_sends(TemporaryFailure("busy", retry_after=HOUR))
    far = house.submit(send_in=HOUR)
    assert far.enqueued_at is None
    assert "enqueued" not in told(run, far)

    def enqueued() -> str:
        house.change([far], enqueue_at=house.database_time())
        assert house.parts.sweep.enqueue_due() == 1
        return told(run, far).split("what happened", 1)[1]

    enqueued()
    at = house.again(far).enqueued_at
    assert at is not None
    house.change([far], next_attempt_at=house.database_time())
    house.deliver(far)
    out = told(run, far).split("what happened", 1)[1]
    [happened] = [line for line in out.splitlines() if "to Celery" in line]
    assert happened.split()[:2] == f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1_000:03}".split()
    places = [out.index(what) for what in ("submitted", "reserved", "enqueued", "attempt 1")]
    assert places == sorted(places)
    assert run("show", str(far.id), "--json").data["enqueued_at"] == as_text(at)
    [row] = run("export").lines
    assert row["enqueued_at"] == as_text(at)
    again = enqueued()
    assert again.index("attempt 1") < again.index("to Celery")


def test_the_story_names_the_claim_the_decision_and_the_deletion(house: House, run: Run) -> None:
    message = house.submit(on_unknown="hold")
    house.parts.delivery.claims.claim([message.id])
    out = told(run, message)
    assert "under way" in out
    assert "a worker is sending it; without a recorded outcome it is held at" in out
    house.end_claims(message)
    house.parts.sweep.rescue()
    out = told(run, message)
    assert "unknown" in out
    assert "next: a person decides" in out
    other = house.submit("ben", send_in=HOUR)
    house.dispatcher.cancel(other.id)
    out = told(run, other)
    assert "no reservation" not in out
    data = run("show", str(other.id), "--json").data
    assert data["reservations"] == [{"scope": "ben", "at": None}]
    assert data["next"]["what"] == "it is deleted after"
    house.deliver(house.submit("cyd"))
    [sent] = [*house.dispatcher.select(recipient="cyd")]
    assert told(run, sent).split().count("sent") == 2, "its status, and its only try"


def test_a_place_that_was_lost_is_told_and_one_that_cannot_be_seen(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = house.submit(send_in=HOUR)
    house.redis.delete(house.keys("ada").window("ada"))
    assert "no reservation  of ada any more" in told(run, message)
    monkeypatch.setenv("DISPATCHER_REDIS_URL", "redis://127.0.0.1:1")
    assert "Redis does not answer" in told(run, message)
    assert run("show", str(message.id), "--json").data["reservations"] is None
