"""What comes of a batch is what comes of its messages one by one, whatever shards they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dispatcher.errors import DispatcherError, QuotaExceeded
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.reservation import (
    BookingRequest,
    Slot,
    Submit,
    Terms,
)
from dispatcher.reservation.terms import AnyQuota
from dispatcher.scope import OWN_SCOPE, counted
from dispatcher.times.quiet_hours import Hours
from tests.support.limits import little_at_once
from tests.support.reserving import Reserving, late_releases, reserving
from tests.support.servers import RedisServer
from tests.support.soak import examples

BASE = 4_102_444_800_000  # 2100-01-01, ms
KINDS = ("recipient.sms", "channel.sms", "channel.mail", "tenant")
NAMESPACES = count()
QUIET = Hours.parse("00:00-00:01")

quotas = st.lists(st.builds(Quota, st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=2)
rules = st.fixed_dictionaries({OWN_SCOPE: quotas}, optional=dict.fromkeys(KINDS, quotas))


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what one draft asks for."""
    return {
        "scope": f"person {draw(st.integers(0, 5))}",
        "channel": draw(st.sampled_from(["sms", "mail"])),
        "tenant": draw(st.sampled_from([None, "acme", "umbrella", "initech"])),
        "asked": draw(st.integers(0, 60)),
        "room": draw(st.sampled_from([0, 0, 5, 50, 100_000])),
        "quiet": draw(st.sampled_from([None, None, None, QUIET])),
        "key": draw(st.sampled_from([None, None, *range(6)])),
    }


def wish(asked: int) -> dict[str, Any]:
    """Return what one draft asks for that wants this time or none."""
    plain = {"channel": "sms", "tenant": None, "room": 0, "quiet": None, "key": None}
    return {"scope": "person 0", "asked": asked, **plain}


def requests(asked: Sequence[Mapping[str, Any]], kinds: Any) -> list[BookingRequest]:
    """Return what is asked for as requests of new messages."""
    found = []
    for number, each in enumerate(asked):
        further = {"tenant": each["tenant"]} if each["tenant"] else {}
        scopes = counted(kinds, scope=each["scope"], channel=each["channel"], scopes=further)
        # Within a batch a key has one draft; an odd one is that of a duplicate under way.
        key = each["key"]
        submit = (
            None if key is None else Submit(f"{number if key % 2 else f'duplicate {key}'}", "print")
        )
        at = BASE + each["asked"]
        terms = Terms(scopes, quiet=each["quiet"])
        found.append(BookingRequest(new_id(), terms, at, at + each["room"], submit))
    return found


Names = dict[UUID, UUID]
"""The ids that messages have got on their way, and those that they began with."""


def alone(real: Reserving, request: BookingRequest, names: Names) -> Any:
    """Book one message as submit does."""
    [found] = real.windows.book([request])
    return ours(request, found, names)


def ours(request: BookingRequest, found: Slot | DispatcherError, names: Names) -> Any:
    """Return when it is booked, and under the first id of which message; or the refusal."""
    if isinstance(found, DispatcherError):
        return found
    names.setdefault(found.request.message_id, request.message_id)
    return found.at_ms, names.get(found.message_id, found.message_id)


def seen(found: Any, names: Names) -> Any:
    """Return a verdict."""
    if isinstance(found, QuotaExceeded):
        return (
            found.quota,
            found.scope,
            found.send_at,
            found.next_slot,
            {names.get(each, each) for each in found.conflicting},
        )
    return type(found) if isinstance(found, DispatcherError) else found


def windows(real: Reserving, names: Names) -> dict[bytes, list[Any]]:
    """Return every window and every pending, by its name without the namespace."""
    start = len(real.namespace) + 1
    found: dict[bytes, list[Any]] = {}

    def named(member: bytes) -> bytes:
        id_ = UUID(bytes=member[:16])
        return names.get(id_, id_).bytes + member[16:]

    for name in real.client.scan_iter(match=f"{{{real.namespace}:*"):
        if b":window" in name:
            entries = cast("list[Any]", real.client.zrange(name, 0, -1, withscores=True))
            found[name[start:]] = sorted((named(member), at) for member, at in entries)
        elif name.endswith(b":pending"):
            members = cast("list[bytes]", real.client.zrange(name, 0, -1))
            found[name[start:]] = sorted(
                named(each).replace(real.namespace.encode(), b"") for each in members
            )
    return found


def booked_before(
    real: Reserving,
    taken: Sequence[BookingRequest],
    duplicates: Sequence[BookingRequest],
    names: Names,
) -> None:
    """Let others stand in the way, and duplicates of some drafts be under way."""
    for each in (*taken, *duplicates):
        alone(real, each, names)


def compare(
    server: RedisServer,
    shards: int,
    chosen: Mapping[str, Sequence[AnyQuota]],
    before: Sequence[Mapping[str, Any]],
    asked: Sequence[Mapping[str, Any]],
) -> None:
    further = {kind: each for kind, each in chosen.items() if kind != OWN_SCOPE}
    taken = requests([{**each, "key": None} for each in before], chosen)
    batch = requests(asked, chosen)
    keys: set[str] = set()
    for place, each in enumerate(batch):  # the same key once in a batch
        if each.submit and each.submit.key in keys:
            batch[place] = each._replace(submit=None)
        keys |= {each.submit.key} if each.submit else set()
    duplicates = [
        each._replace(message_id=new_id(), submit=Submit(each.submit.key, "print"))
        for each in batch
        if each.submit and each.submit.key.startswith("duplicate")
    ]
    sides = []
    for together in (True, False):
        space = f"order-{next(NAMESPACES)}"
        with reserving(
            server.url, chosen[OWN_SCOPE], further=further, namespace=space, shards=shards
        ) as real:
            real.open()
            names: Names = {}
            booked_before(real, taken, duplicates, names)
            repeat = late_releases(real)
            if together:
                found = real.windows.book(batch)
                found = [ours(each, it, names) for each, it in zip(batch, found, strict=True)]
            else:
                found = [alone(real, each, names) for each in batch]
            sides.append(([seen(each, names) for each in found], windows(real, names)))
            repeat()
            left = list(real.client.scan_iter(match=f"{{{space}:*"))
            real.client.unlink(*left)
    assert sides[0] == sides[1]


property_test = settings(
    deadline=None,
    database=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("shards", [1, 4, pytest.param(64, marks=pytest.mark.long)])
@property_test
@given(
    chosen=rules,
    before=st.lists(wishes(), max_size=6),
    asked=st.lists(wishes(), min_size=2, max_size=24),
)
def test_a_batch_comes_to_what_its_messages_come_to_one_by_one(
    redis_server: RedisServer, shards: int, chosen: Any, before: Any, asked: Any
) -> None:
    compare(redis_server, shards, chosen, before, asked)


@property_test
@given(chosen=rules, before=st.lists(wishes(), max_size=6), asked=st.lists(wishes(), max_size=16))
@example(
    chosen={OWN_SCOPE: [Quota(2, 2), Quota(1, 1)]}, before=[], asked=[*map(wish, (0, 1, 0, 0))]
)
@example(chosen={OWN_SCOPE: [Quota(1, 1)]}, before=[], asked=[*map(wish, (*range(9), 0, 9, 10))])
def test_so_it_does_where_a_script_may_do_little(
    redis_server: RedisServer, chosen: Any, before: Any, asked: Any
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("dispatcher.reservation.shards.script", little_at_once(3))
        compare(redis_server, 4, chosen, before, asked)
