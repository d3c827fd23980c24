"""Single scopes get limits of their own while everything runs, in every process."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Message, Status
from dispatcher.errors import StoreUnavailable
from tests.support.house import House, hour_ago
from tests.support.house_fixtures import Build, on_postgresql
from tests.support.refusals import refuses
from tests.support.waiting import wait_until

ACME = ("tenant", "acme")
HOUR = timedelta(hours=1)
KINDS: dict[str, Any] = {
    "quotas": "1000/second",
    "scopes": {"tenant": {"quotas": "100/second"}},
    "channels": {"memory": {"transport": "memory"}, "other": {"transport": "memory"}},
    "retention": "60 days",
    "tell_delay_after": "10 minutes",
}


def submitted(house: House, number: int, **more: Any) -> list[Message]:
    more.setdefault("scopes", {"tenant": "acme"})
    return [house.submit(f"to {n}", **more) for n in range(number)]


def sent(house: House, *messages: Message) -> int:
    """Make messages due and deliver them; return how many were sent."""
    scheduled = [one for one in messages if house.again(one).status is Status.SCHEDULED]
    house.make_due(*scheduled)
    return house.deliver(*scheduled)


@pytest.mark.parametrize("shards", [1, 64])
def test_sends_of_a_scope_are_held_to_its_limits(build: Build, shards: int) -> None:
    """On all channels together; set, smaller, larger, ended; and after Redis has lost all."""
    house = build(**KINDS, clock=hour_ago(), shards=shards)
    dispatcher = house.dispatcher
    now = dispatcher.set_limits(*ACME, ["3/hour", "9/day in UTC"])
    assert (now.limits, now.own) == (("3/hour", "9/day in UTC"), False)
    assert now.quotas == ("100/second",)
    of_acme = [*submitted(house, 3), *submitted(house, 3, channel="other")]
    free = submitted(house, 4, scopes={"tenant": "other"})
    assert sent(house, *of_acme, *free) == 3 + 4
    waiting = [one for one in map(house.again, of_acme) if one.status is Status.SCHEDULED]
    assert [one.delayed_by for one in waiting] == ["tenant: 3/hour"] * 3
    for one in waiting:
        assert 59 * 60 < (one.next_attempt_at - house.database_time()).total_seconds() <= 3_600
    assert sent(house, *waiting) == 0
    house.redis.flushall()
    build(**KINDS, clock=hour_ago(), shards=shards, opened=False).reconciled()
    assert sent(house, *waiting) == 0, "a rebuild counts what was sent"
    dispatcher.set_limits(*ACME, "4/hour")
    house.moved.advance(timedelta(seconds=5))
    assert sent(house, *waiting) == 1
    dispatcher.unset_limits(*ACME)
    house.moved.advance(timedelta(seconds=5))
    assert sent(house, *waiting) == 2
    assert dispatcher.scope_settings() == ()


@pytest.mark.parametrize("shards", [1, 64])
@pytest.mark.parametrize("limits", [None, "1000/hour"])
def test_who_waits_for_a_limit_comes_once_it_is_larger(
    build: Build, shards: int, limits: str | None
) -> None:
    """A limit set by mistake keeps nobody waiting for the days that it would have taken."""
    house, other = (build(**KINDS, clock=hour_ago(), shards=shards) for _ in range(2))
    house.dispatcher.set_limits(*ACME, "1/hour")
    other.moved.advance(timedelta(seconds=5))
    messages = submitted(house, 6)
    assert (sent(house, *messages[:3]), sent(other, *messages[3:])) == (1, 0)
    if limits is None:
        house.dispatcher.unset_limits(*ACME)
    else:
        house.dispatcher.set_limits(*ACME, limits)
    house.parts.reconciler.reconcile()
    for one in (house, other):
        one.moved.advance(timedelta(seconds=5))
        sent(one, *submitted(one, 1))
        one.parts.reconciler.reconcile()
    now = house.database_time()
    assert [one for one in map(house.again, messages) if one.next_attempt_at > now] == []


@on_postgresql
def test_another_process_knows_them_within_five_seconds(build: Build) -> None:
    house, other = (build(**KINDS, clock=hour_ago()) for _ in range(2))
    messages = submitted(house, 6)
    assert sent(other, messages[0]) == 1
    house.dispatcher.set_limits(*ACME, "2/hour")
    other.moved.advance(timedelta(seconds=5))
    assert sent(other, *messages) == 2
    house.dispatcher.unset_limits(*ACME)
    other.moved.advance(timedelta(seconds=5))
    assert sent(other, *messages) == 3


def test_what_has_a_permit_and_waits_for_a_sender_asks_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permit from before the limit does not count against it: at a slow provider, hundreds."""
    channels = {"memory": {"transport": "memory", "senders": 1}}
    house = build(**KINDS | {"channels": channels}, clock=hour_ago())
    messages, send = submitted(house, 6), house.memory.send

    def slow(message: Message) -> str | None:
        if not house.sent:
            house.dispatcher.set_limits(*ACME, "2/hour")
            house.moved.advance(timedelta(seconds=5))
            others = [one for one in messages if one.id != message.id]
            wait_until(lambda: {house.again(one).status for one in others} == {Status.SCHEDULED})
        return send(message)

    monkeypatch.setattr(house.memory, "send", slow)
    assert sent(house, *messages) == 1, "it had begun"
    assert sent(house, *messages) == 2


def test_a_process_that_could_not_read_limits_sends_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not take them for none: then each restart would let more through."""
    house, begun = (build(**KINDS, clock=hour_ago()) for _ in range(2))
    messages = submitted(house, 2)
    house.dispatcher.set_limits(*ACME, "1/hour")

    def cut(*_: object) -> None:
        raise StoreUnavailable("the line is cut")

    with monkeypatch.context() as broken:
        broken.setattr(begun.parts.rules, "_changed", cut)
        assert sent(begun, *messages) == 0
    begun.moved.advance(timedelta(seconds=5))
    assert sent(begun, *messages) == 1


def test_quotas_and_limits_of_a_scope_do_not_touch_each_other(build: Build) -> None:
    house = build(**KINDS | {"scopes": {"tenant": {"quotas": "9/hour"}}})
    dispatcher = house.dispatcher
    dispatcher.set_limits(*ACME, "2/hour")
    both = dispatcher.set_quotas(*ACME, "5/hour")
    assert (both.quotas, both.own, both.limits) == (("5/hour",), True, ("2/hour",))
    assert dispatcher.scope_settings() == (both,)
    dispatcher.unset_quotas(*ACME)
    [left] = dispatcher.scope_settings("tenant")
    assert (left.quotas, left.own, left.limits) == (("9/hour",), False, ("2/hour",))
    assert dispatcher.unset_limits(*ACME).limits == ()


def test_what_cannot_be_is_refused_with_its_field(build: Build) -> None:
    house = build(**KINDS)
    cases: list[tuple[Any, Any, Any, str]] = [
        ("recipient", "ada", "1/hour", "kind"),
        ("recipient.memory", "ada", "1/hour", "kind"),
        ("channel.memory", "memory", "1/hour", "kind"),
        ("nobody", "acme", "1/hour", "kind"),
        (7, "acme", "1/hour", "kind"),
        ("tenant", "", "1/hour", "name"),
        ("tenant", "a" * 256, "1/hour", "name"),
        ("tenant", "acme", "1/fortnight", "limits"),
        ("tenant", "acme", "10/day in local", "limits"),
        ("tenant", "acme", "5/hour, 1 kept for priority >= 50", "limits"),
        ("tenant", "acme", "100/day growing 1.5 daily to 900/day from 2027-01-01", "limits"),
        ("tenant", "acme", [], "limits"),
        ("tenant", "acme", "", "limits"),
        ("tenant", "acme", 5, "limits"),
        ("tenant", "acme", [5], "limits"),
        ("tenant", "acme", "1/60 day", "limits"),
    ]
    for *given, field in cases:
        refuses(house.dispatcher.set_limits, *given, field=field)
    assert house.dispatcher.scope_settings() == ()


def test_an_erased_recipient_leaves_no_limit_and_no_permits_in_its_name(build: Build) -> None:
    house = build(**KINDS, clock=hour_ago())
    house.dispatcher.set_limits("tenant", "lovelace", "5/day in UTC")
    message = house.submit("lovelace", scopes={"tenant": "lovelace"})
    assert house.deliver(message) == 1
    assert any("lovelace" in str(held) for _, held in house.everything())
    house.dispatcher.erase("lovelace")
    assert not any("lovelace" in str(held) for _, held in house.everything())
    assert not any(b"lovelace" in key for key in house.redis.keys("*"))
    assert house.dispatcher.scope_settings() == ()
