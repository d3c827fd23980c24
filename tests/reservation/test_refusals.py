"""Refused submits are counted by rule, and the last ones are kept."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest
import redis

from dispatcher import InvalidValue, QuietHours, QuotaExceeded, Rejection
from dispatcher.errors import SlotRefused
from dispatcher.redis.keys import LooseKeys
from dispatcher.reservation import refusals
from dispatcher.telemetry.journal import digest_with
from tests.support.house import FAR, House, draft
from tests.support.house_fixtures import Build

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DAY = timedelta(days=1)
KEY = "a secret of more than thirty-two letters"


def refuse(house: House, recipient: str = "ada", **asked: Any) -> SlotRefused:
    with pytest.raises(SlotRefused) as refused:
        house.submit(recipient, **{"send_at": FAR + HOUR} | asked)
    return refused.value


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

    refusals = house.dispatcher.refusals()
    by_rule = {(rule.kind, rule.quota): rule for rule in refusals.rules}
    assert {rule: count.refused for rule, count in by_rule.items()} == {
        ("", "2/hour"): 20, ("tenant", "1/minute"): 1, ("", None): 1,
    }  # fmt: skip
    hour = by_rule["", "2/hour"]
    assert HOUR <= hour.wait_p50 == hour.wait_p95 <= 1.1 * HOUR
    assert MINUTE <= by_rule["tenant", "1/minute"].wait_p50 <= 1.1 * MINUTE
    assert 2 * HOUR <= by_rule["", None].wait_p95 <= 2.2 * HOUR

    assert [refusal.quota for refusal in refusals.last[:3]] == [None, "1/minute", "2/hour"]
    last = refusals.last[-1]
    digest = digest_with(KEY)
    assert digest is not None
    assert (last.scope, last.send_at, last.next_slot) == (
        digest("ada"), refused[0].send_at, refused[0].next_slot,
    )  # fmt: skip
    only = house.dispatcher.refusals(quota="1 per minute", last=0)
    assert [(rule.kind, rule.refused) for rule in only.rules] == [("tenant", 1)]
    assert only.last == ()


def test_no_name_is_noted_and_without_a_key_none_is_told(house: House) -> None:
    house.submit("ada.lovelace", send_at=FAR)
    refuse(house, "ada.lovelace", send_at=FAR)
    keys = LooseKeys(house.settings.namespace)
    kept = cast("list[bytes]", house.redis.lrange(keys.last_refusals, 0, -1))
    assert len(kept) == 1
    assert b"lovelace" not in kept[0]
    assert house.dispatcher.refusals().last[0].scope is None


def test_a_plan_refuses_nobody(build: Build) -> None:
    house = build(quotas="2/minute")
    drafts = [draft(send_at=FAR + number * SECOND) for number in (0, 1, 2, 30, 61)]
    house.dispatcher.plan(drafts)
    results = house.dispatcher.submit_many(drafts)
    assert [isinstance(entry, Rejection) for entry in results] == [False, False, True, True, False]
    assert house.dispatcher.refusals().rules[0].refused == 2


def _last(house: House) -> str:
    return LooseKeys(house.settings.namespace).last_refusals


def test_kept_refusals_are_bounded_and_expire(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_KEPT", 3)
    house.submit(send_at=FAR)
    for _ in range(5):
        refuse(house, send_at=FAR)
    keys = LooseKeys(house.settings.namespace)
    assert house.redis.llen(keys.last_refusals) == 3
    names = [*house.redis.scan_iter(match="*@refusals}:*")]
    assert len(names) == 2
    assert all(timedelta(days=7) < timedelta(milliseconds=house.redis.pttl(name))
               <= timedelta(days=8) for name in names)  # fmt: skip
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
    figures: list[tuple[int, int]] = []
    note = house.parts.refusals.note

    def stall(refused: Any) -> None:
        figures.append((len(refused), len(house.rows())))
        note(refused)

    monkeypatch.setattr(house.parts.refusals, "note", stall)
    drafts = [draft(recipient, send_at=FAR) for recipient in ("ada", "ada", "eve")]
    results = house.dispatcher.submit_many(drafts)
    assert [isinstance(entry, Rejection) for entry in results] == [False, True, False]
    assert figures == [(1, 2)]
    assert house.dispatcher.refusals().rules[0].refused == 1


def test_an_accepted_submit_sends_nothing_more(house: House) -> None:
    house.submit(send_at=FAR)
    before = _commands(house.redis)
    house.submit(send_at=FAR + HOUR)
    sent = _commands(house.redis) - before
    assert (sent["evalsha"], sent["zcount"] > 0) == (1, True)
    assert not [command for command in sent if command.startswith(("h", "l", "zrev", "zrange"))]


def _commands(client: redis.Redis) -> Any:
    stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    return Counter({name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()})


@pytest.mark.parametrize(
    "wrong", [{"since": timedelta(0)}, {"since": 8 * DAY}, {"last": -1}, {"quota": "many"}]
)
def test_bad_arguments_of_refusals_are_refused(house: House, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        house.dispatcher.refusals(**wrong)
