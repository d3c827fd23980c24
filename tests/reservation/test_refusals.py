"""Refused submits are counted by rule, and replayed by the real rule against other quotas."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest
import redis

from dispatcher import Draft, InvalidValue, QuietHours, QuotaExceeded, Rejection
from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.redis.keys import RefusalKeys
from dispatcher.reservation import BookingRequest, Replay, Rules, Terms, Windows, refusals
from dispatcher.settings import Settings
from dispatcher.telemetry.journal import digest_with
from dispatcher.times.send_time import to_ms
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.support.soak import a_third_of

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DAY = timedelta(days=1)
KEY = "a secret of more than thirty-two letters"


def refuse(house: House, recipient: str = "ada", **asked: Any) -> SlotRefused:
    with pytest.raises(SlotRefused) as refused:
        house.submit(recipient, **{"send_at": FAR + HOUR} | asked)
    return refused.value


def replay(house: House, what_if: str, **more: Any) -> tuple[int, int, int]:
    found = house.dispatcher.refusals(what_if=what_if, **more).replay
    assert isinstance(found, Replay)
    assert found.examined == found.accepted + found.refused + found.unknown
    return found.accepted, found.refused, found.unknown


def test_each_rule_counts_what_it_refuses_and_how_far_the_next_slot_is(build: Build) -> None:
    house = build(quotas="2/hour", scopes={"tenant": {"quotas": ["1/minute"]}}, log_key=KEY)
    for minutes in (0, 10):
        house.submit(send_at=FAR + HOUR + minutes * MINUTE)
    refused = [refuse(house) for _ in range(19)]
    refuse(house, send_at=FAR + HOUR + 55 * MINUTE)
    house.submit("ben", send_at=FAR, scopes={"tenant": "acme"})
    refuse(house, "cyd", send_at=FAR, scopes={"tenant": "acme"})
    with pytest.raises(QuietHours):
        house.submit("dan", send_at=FAR, quiet_hours="11:00-13:00")

    found = house.dispatcher.refusals()
    by_rule = {(each.kind, each.quota): each for each in found.rules}
    assert {rule: each.refused for rule, each in by_rule.items()} == {
        ("", "2/hour"): 20, ("tenant", "1/minute"): 1, ("", None): 1,
    }  # fmt: skip
    hour = by_rule["", "2/hour"]
    assert HOUR <= hour.wait_p50 == hour.wait_p95 <= 1.1 * HOUR
    assert MINUTE <= by_rule["tenant", "1/minute"].wait_p50 <= 1.1 * MINUTE
    assert 2 * HOUR <= by_rule["", None].wait_p95 <= 2.2 * HOUR

    assert [each.quota for each in found.last[:3]] == [None, "1/minute", "2/hour"]
    last = found.last[-1]
    digest = digest_with(KEY)
    assert digest is not None
    assert (last.scope, last.send_at, last.next_slot) == (
        digest("ada"), refused[0].send_at, refused[0].next_slot,
    )  # fmt: skip
    only = house.dispatcher.refusals(quota="1 per minute", last=0)
    assert [(each.kind, each.refused) for each in only.rules] == [("tenant", 1)]
    assert only.last == ()


def test_no_name_is_noted_and_without_a_key_none_is_told(house: House) -> None:
    house.submit("ada.lovelace", send_at=FAR)
    refuse(house, "ada.lovelace", send_at=FAR)
    keys = RefusalKeys(house.settings.namespace)
    kept = cast("list[bytes]", house.redis.lrange(keys.last, 0, -1))
    assert len(kept) == 1
    assert b"lovelace" not in kept[0]
    assert house.dispatcher.refusals().last[0].scope is None


def test_the_last_refusals_are_judged_by_another_quota(build: Build) -> None:
    house = build(quotas="5/hour")
    for minutes in range(5):
        house.submit(send_at=FAR + HOUR + minutes * MINUTE)
    for minutes in (5, 6, 7):
        refuse(house, send_at=FAR + HOUR + minutes * MINUTE)
    assert replay(house, "6/hour") == (1, 2, 0)
    assert replay(house, "7/hour") == (2, 1, 0)
    assert replay(house, "5/hour") == (0, 3, 0)
    assert replay(house, "8/hour", quota="1/minute") == (0, 0, 0)
    assert replay(house, "5/hour in UTC") == (0, 3, 0)
    assert replay(house, "1/minute") == (3, 0, 0)


def test_other_quotas_and_scopes_still_count(build: Build) -> None:
    house = build(quotas="1/minute, 3/hour", scopes={"tenant": {"quotas": ["2/hour"]}})
    house.submit(send_at=FAR, scopes={"tenant": "acme"})
    house.submit("ben", send_at=FAR + 30 * MINUTE, scopes={"tenant": "acme"})
    refuse(house, send_at=FAR + 30 * SECOND)
    assert replay(house, "2/minute") == (1, 0, 0)
    refuse(house, send_at=FAR + 40 * SECOND, scopes={"tenant": "acme"})
    assert replay(house, "2/minute") == (1, 1, 0), "of both only the first fits"
    assert replay(house, "9/minute") == (1, 1, 0), "the tenant's quota is full"


def test_drafts_of_a_batch_see_those_before_them(build: Build) -> None:
    house = build(quotas="2/minute")
    drafts = [
        Draft(channel="memory", recipient="ada", body={}, send_at=FAR + number * SECOND)
        for number in (0, 1, 2, 30, 61)
    ]
    results = house.dispatcher.submit_many(drafts)
    assert [isinstance(each, Rejection) for each in results] == [False, False, True, True, False]
    assert replay(house, "4/minute") == (2, 0, 0)
    assert replay(house, "3/minute") == (1, 1, 0)
    house.dispatcher.plan(drafts)
    assert house.dispatcher.refusals().rules[0].refused == 2, "a plan refuses nobody"


def test_the_replay_counts_refusals_that_it_cannot_judge(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_NEAR", 4)
    house = build(quotas="1/minute")
    for minutes in range(12):
        house.submit(send_at=FAR + HOUR + minutes * MINUTE)
    refuse(house, send_at=FAR + HOUR + 5 * MINUTE)
    assert replay(house, "3/2 minutes") == (1, 0, 0)
    assert replay(house, "2/hour") == (0, 1, 0), "enough is known to refuse"
    assert replay(house, "13/hour") == (0, 0, 1)
    assert replay(house, "13/day in UTC") == (0, 0, 1)


def test_a_refusal_whose_window_has_changed_is_not_judged(build: Build) -> None:
    house = build(quotas="1/minute")
    first = house.submit(send_at=FAR)
    error = refuse(house, send_at=FAR)
    house.dispatcher.cancel(first.id)
    at = to_ms(FAR)
    house.parts.refusals.note([(BookingRequest(new_id(), Terms.own("ada"), at, at), error)])
    assert replay(house, "2/minute") == (1, 0, 1)


@pytest.mark.parametrize("seed", a_third_of(range(4)))
@pytest.mark.parametrize("quota", ["2/15 minute", "4/hour", "6/110 minute", "4/hour in UTC"])
def test_a_replay_answers_as_the_rule_in_redis(build: Build, quota: str, seed: int) -> None:
    """Each refusal alone: the same window, judged by the scripts under the other quota."""
    house = build(quotas="1/10 minute, 9/2 hour")
    roll = random.Random(seed)  # noqa: S311 - not for secrets
    other = Settings(**{**house.settings.model_dump(), "quotas": f"{quota}, 9/2 hour"})
    rule = Windows(
        house.redis, Rules(other.quotas_of), keys=house.parts.fence.keys, under_way=HOUR
    )  # fmt: skip
    terms, answers = Terms.own("ada"), []
    for _ in range(80):
        at = FAR + roll.randrange(6 * 3_600) * SECOND
        try:
            house.submit(send_at=at)
        except QuotaExceeded as error:
            if error.quota != "1/10 minute":
                continue
            fits = rule.next_slot(terms, at) == at
            [kept, *_] = cast("list[bytes]", house.redis.lrange(_last(house), 0, 0))
            house.redis.delete(_last(house))
            house.redis.lpush(_last(house), kept)
            answers.append((replay(house, quota, quota="1/10 minute"), fits))
    assert {fits for _, fits in answers} == {True, False}
    assert [found for found, _ in answers] == [(int(fits), int(not fits), 0) for _, fits in answers]


def _last(house: House) -> str:
    return RefusalKeys(house.settings.namespace).last


def test_kept_refusals_are_bounded_and_expire(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_KEPT", 3)
    house.submit(send_at=FAR)
    for _ in range(5):
        refuse(house, send_at=FAR)
    keys = RefusalKeys(house.settings.namespace)
    assert house.redis.llen(keys.last) == 3
    names = [*house.redis.scan_iter(match="*@refusals}:*")]
    assert len(names) == 2
    assert all(timedelta(days=7) < timedelta(milliseconds=house.redis.pttl(each))
               <= timedelta(days=8) for each in names)  # fmt: skip
    assert house.dispatcher.refusals(last=1).rules[0].refused == 5


def test_hours_that_are_past_do_not_count(house: House) -> None:
    house.submit(send_at=FAR + DAY)
    refuse(house, send_at=FAR + DAY)
    house.moved.advance(3 * HOUR)
    assert house.dispatcher.refusals(since=HOUR).rules == ()
    assert house.dispatcher.refusals(since=HOUR).last == ()
    assert house.dispatcher.refusals(since=4 * HOUR).rules[0].refused == 1


def test_a_note_that_cannot_be_made_fails_no_submit(house: House) -> None:
    house.submit(send_at=FAR)
    house.redis.set(_last(house), "of another type")
    error = refuse(house, send_at=FAR)
    assert isinstance(error, QuotaExceeded)
    assert house.submit(send_at=FAR + HOUR).send_at == FAR + HOUR


def test_a_note_that_stalls_delays_no_message(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis stands still while refusals are noted: what was accepted is stored."""
    found: list[tuple[int, int]] = []
    note = house.parts.refusals.note

    def stall(refused: Any) -> None:
        found.append((len(refused), len(house.rows())))
        note(refused)

    monkeypatch.setattr(house.parts.refusals, "note", stall)
    drafts = [
        Draft(channel="memory", recipient=recipient, body={}, send_at=FAR)
        for recipient in ("ada", "ada", "eve")
    ]
    results = house.dispatcher.submit_many(drafts)
    assert [isinstance(each, Rejection) for each in results] == [False, True, False]
    assert found == [(1, 2)]
    assert house.dispatcher.refusals().rules[0].refused == 1


def test_an_accepted_submit_sends_nothing_more(house: House) -> None:
    house.submit(send_at=FAR)
    before = _commands(house.redis)
    house.submit(send_at=FAR + HOUR)
    sent = _commands(house.redis) - before
    assert (sent["evalsha"], sent["zcount"] > 0) == (1, True)
    assert not [each for each in sent if each.startswith(("h", "l", "zrev", "zrange"))]


def _commands(client: redis.Redis) -> Any:
    stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})


@pytest.mark.parametrize(
    "wrong",
    [{"since": timedelta(0)}, {"since": 8 * DAY}, {"last": -1}, {"quota": "many"},
     {"what_if": "6"}],
)  # fmt: skip
def test_bad_arguments_of_refusals_are_refused(house: House, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        house.dispatcher.refusals(**wrong)
