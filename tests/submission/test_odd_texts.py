"""A text of a subclass of str is one name everywhere: in SQL, in Redis, and in what is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import Enum, IntEnum
from typing import Any

import pytest
import redis

from dispatcher import Channel, Draft, Message, QuotaExceeded, Rejection, Status, Suppressed
from dispatcher.limiters import GCRA, FixedWindow, Limiter, SlidingLog
from dispatcher.limiters import Request as PermitRequest
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.support.reserving import value_of
from tests.support.servers import RedisServer

Odd = Callable[[str], str]
Act = Callable[[House, Odd], object]
AT = (FAR + timedelta(hours=1)).isoformat()
SETTINGS: dict[str, Any] = {
    "quotas": "9/minute",
    "scopes": {"tenant": {"quotas": "2/day in local"}},
    "channels": {
        "memory": {
            "transport": "memory",
            "quotas": "90/day",
            "templates": {"hello": {"text": "{{ who }} {{ level }} {{ all | join }}"}},
        },
        "hooks": {"transport": "webhook", "options": {"payload": "body"}},
    },
    "status_channel": "hooks",
}


class Level(IntEnum):
    ODD = 3


def odd(value: str) -> str:
    """Return a member of an Enum of texts, which str() and f-strings write as ``Odd.ODD``."""
    make: Any = Enum
    text: str = make("Odd", {"ODD": value}, type=str).ODD
    return text


def asked(odd: Odd, **more: Any) -> dict[str, Any]:
    return {
        "channel": odd("memory"),
        "recipient": odd("ada"),
        "body": {odd("text"): odd("hello"), "of": [{odd("deep"): odd("down")}, Level.ODD]},
        "send_at": odd(AT),
        "zone": odd("Asia/Tokyo"),
        "scope": odd("ada"),
        "scopes": {odd("tenant"): odd("acme")},
        "campaign": odd("summer"),
        "idempotency_key": odd(f"key {len(more)}"),
        "expires_at": odd((FAR + timedelta(hours=2)).isoformat()),
        "quiet_hours": odd("02:00-03:00"),
        "on_conflict": odd("reject"),
        "on_unknown": odd("hold"),
        "status_url": odd("https://example.org/status"),
        **more,
    }


def in_batch(house: House, draft: Draft) -> object:
    [result] = house.dispatcher.submit_many([draft])
    if isinstance(result, Rejection):
        raise result.error
    return result


def in_template(house: House, odd: Odd) -> object:
    data = {odd("who"): odd("ada"), "level": Level.ODD, "all": [odd("b")]}
    return house.dispatcher.submit(**asked(odd, body=None, template=odd("hello"), data=data))


SUBMITS: dict[str, Act] = {
    "submit": lambda house, odd: house.dispatcher.submit(**asked(odd)),
    "batch": lambda house, odd: in_batch(house, Draft(**asked(odd))),
    "typed channel": lambda house, odd: house.dispatcher.submit(
        **asked(odd, channel=Channel[dict[str, Any]](odd("memory")))
    ),
    "template": in_template,
}


def everything(house: House) -> str:
    """Return all that SQL and Redis hold and all that was sent, as one text."""
    return repr(([*house.everything()], [(message, message.body) for message in house.memory.sent]))


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(part) for key, part in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return not isinstance(value, str | int) or type(value) in (str, int, bool, Status)


@pytest.mark.every_database
@pytest.mark.parametrize("way", SUBMITS)
def test_a_submit_stores_counts_and_sends_the_value(build: Build, way: str) -> None:
    house = build(**SETTINGS)
    message = SUBMITS[way](house, odd)
    assert isinstance(message, Message)
    fields = {name: getattr(message, name) for name in Message.__slots__}
    assert is_plain(fields), fields
    assert house.again(message) == message
    assert message.recipient == "ada"
    if way == "template":
        assert message.body == {"text": "ada 3 b"}
    else:
        assert message.body == {"text": "hello", "of": [{"deep": "down"}, 3]}
    house.submit("ben", send_at=AT, zone="Asia/Tokyo", scopes={"tenant": "acme"})
    with pytest.raises(QuotaExceeded):  # the third of acme on that day
        house.submit("cyd", send_at=AT, zone="Asia/Tokyo", scopes={"tenant": "acme"})
    assert not house.dispatcher.verify_windows().differences
    assert SUBMITS[way](house, odd) == message  # the key is the same
    assert "ODD" not in everything(house)


@pytest.mark.every_database
def test_changes_and_lists_take_the_value(build: Build) -> None:
    house = build(**SETTINGS)
    client = house.dispatcher
    message = client.submit(**asked(str))
    for filters in (
        {"channel": odd("memory")}, {"channel": [odd("memory")]}, {"recipient": odd("ada")},
        {"scope": odd("ada")}, {"scopes": {odd("tenant"): odd("acme")}}, {"key_prefix": odd("key")},
        {"idempotency_key": odd("key 0")}, {"campaign": odd("summer")},
        {"status": odd("scheduled")}, {"from_at": odd(AT[:10]), "zone": odd("UTC")},
    ):  # fmt: skip
        assert [*client.select(**filters)] == [message], filters
    assert client.get(odd(str(message.id))) == message
    assert client.plan([Draft(**asked(odd))]).known == 1
    slot = client.next_slot(
        recipient=odd("ada"), channel=odd("memory"), scopes={odd("tenant"): odd("acme")},
        zone=odd("Asia/Tokyo"), quiet_hours=odd("02:00-03:00"), after=odd(AT),
    )  # fmt: skip
    assert slot == message.send_at
    windows = client.timeline(odd("ada"), channel=odd("memory"), zone=odd("UTC")).windows
    assert {window.scope for window in windows} == {"ada", "channel.memory"}
    [window] = client.timeline(odd("acme"), kind=odd("tenant")).windows
    assert (window.scope, window.exists) == ("tenant:acme", True)
    assert type(client.top(odd("recipient"), by=odd("fill")).of) is str  # type: ignore[arg-type]  # texts
    assert client.refusals(quota=odd("9/minute")).last == ()
    later = odd((FAR + timedelta(minutes=90)).isoformat())
    moved = client.reschedule(message.id, send_at=later, set_zone=odd("Europe/Paris"))
    assert (moved.zone, type(moved.zone)) == ("Europe/Paris", str)
    data = {odd("who"): odd("ada"), "level": Level.ODD, "all": []}
    assert client.update(message.id, template=odd("hello"), data=data).body == {"text": "ada 3 "}
    assert {pause.name for pause in client.pause(odd("tenant"), odd("acme"))} == {"acme"}
    assert client.resume(odd("tenant"), odd("acme")) == ()
    assert client.suppress(odd("ada"), channel=odd("memory")) == 1
    with pytest.raises(Suppressed):
        house.submit("ada")
    assert [suppression.recipient for suppression in client.suppressed(odd("ada"))] == ["ada"]
    assert not client.verify_windows().differences
    assert "ODD" not in everything(house)
    assert client.unsuppress(odd("ada"), channel=odd("memory")) == ()
    assert house.submit("ada", send_at=AT).recipient == "ada"


def limiters(client: redis.Redis, odd: Odd) -> list[Limiter]:
    named: dict[str, Any] = {"prefix": odd("p"), "tag": odd("t"), "on_error": odd("raise")}
    return [
        algorithm.on(client, **named)
        for algorithm in (
            SlidingLog(2, odd("minute"), name=odd("n")),
            FixedWindow(2, odd("month"), align=odd("Asia/Tokyo")),
            GCRA.parse(odd("2/minute burst 1")),
        )
    ]


def test_limiters_count_by_the_value(redis_server: RedisServer) -> None:
    client = redis_server.client()
    for limiter, same in zip(limiters(client, odd), limiters(client, str), strict=True):
        assert limiter.acquire(odd("acme"), permit=odd("one"))
        assert same.acquire("acme", permit="one").remaining == 1  # known, so not counted again
        [granted] = limiter.acquire_each([PermitRequest(odd("acme"), permit=odd("two"))])
        assert granted
        assert not same.acquire("acme")
        assert same.give_back("acme", "two") == limiter.give_back(odd("acme"), odd("one")) == 1
        with limiter.permit([odd("acme")]):
            assert same.peek("acme").remaining < 2
        limiter.reset(odd("acme"))
    keys = {key: value_of(client, key) for key in client.scan_iter()}
    assert "ODD" not in repr(keys)
    client.close()
