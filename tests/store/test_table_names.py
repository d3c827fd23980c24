"""A house whose tables have other names than the usual ones, which its database lacks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher import Draft, Message, PerhapsSent, PermanentFailure, Status
from dispatcher.store import migrate
from tests.support.examining import OK, examined
from tests.support.house import BODY, House, hour_ago, house_on
from tests.support.servers import RedisServer

CHANNELS: dict[str, Any] = {
    "memory": {"transport": "memory", "max_attempts": 1},
    "expire": {"transport": "memory", "catch_up": "expire"},
    "reslot": {"transport": "memory", "catch_up": "reslot"},
    "status": {"transport": "webhook", "options": {"payload": "body"}},
}
IN_AN_HOUR = timedelta(hours=1)


@pytest.fixture(
    params=[
        ("sqlite", {"table_prefix": "crm_"}),
        ("postgresql", {"table_prefix": "crm_"}),
        ("mariadb", {"table_prefix": "crm_"}),
        ("postgresql", {"table_prefix": "crm_", "table_schema": "crm"}),
    ],
    ids=["sqlite", "postgresql", "mariadb", "schema"],
)
def house(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Any) -> Any:
    """Give a house whose clock is an hour slow: what is submitted now is due at once."""
    kind, names = request.param
    if kind == "sqlite":
        url, server = f"sqlite:///{tmp_path}/crm.db", None
    else:
        server = request.getfixturevalue("postgres" if kind == "postgresql" else kind)
        name = server.create_database()
        url = server.url(name)
    with house_on(
        redis_server, url, clock=hour_ago(), opened=False, channels=CHANNELS,
        status_channel="status", **names,
    ) as house:  # fmt: skip
        migrate(house.parts.database)
        house.open()
        yield house
    if server is not None:
        server.drop_database(name)


def submitted(house: House) -> Iterator[Message]:
    """Submit one by one, repeated, and many at once."""
    yield house.submit("one", idempotency_key="key")
    yield house.submit("one", idempotency_key="key")
    later = {"channel": "memory", "body": BODY, "send_in": IN_AN_HOUR * 2}
    drafts = [Draft(recipient=name, **later) for name in "abc"]  # type: ignore[arg-type]  # of a dict
    for each in house.dispatcher.submit_many(drafts):
        assert isinstance(each, Message)
        yield each


def refuse(message: Message) -> None:
    raise PerhapsSent("?") if message.recipient == "unknown" else PermanentFailure("no")


def test_a_whole_life_under_other_names(house: House) -> None:
    first, again, *many = submitted(house)
    assert again == first
    a, b, c = many
    door = house.dispatcher
    assert house.deliver(first) == 1
    assert house.again(first).status is Status.SENT
    assert [each.outcome for each in door.attempts(first.id)] == ["sent"]
    assert door.update(a.id, body={"text": "new"}).body == {"text": "new"}
    assert door.reschedule(a.id, send_in=IN_AN_HOUR * 3).send_at > a.send_at
    assert door.cancel(b.id).status is Status.CANCELLED
    assert [getattr(each, "status", None) for each in door.cancel_many([c.id])] == ["cancelled"]
    assert door.suppress("a") == 1
    assert [each.recipient for each in door.suppressed()] == ["a"]
    assert door.unsuppress("a") == ()

    failing, unknown = house.submit("failing"), house.submit("unknown", on_unknown="hold")
    asked = house.submit("asked", status_url="https://shop.example/told")
    house.memory.before = refuse
    house.deliver(failing, unknown, asked)
    house.memory.before = None
    assert [each.id for each in door.held()] == [unknown.id]
    assert door.release(unknown.id).status is Status.SCHEDULED
    assert door.retry(failing.id).status is Status.SCHEDULED
    assert house.parts.sweep.enqueue_due() == 2
    assert house.parts.sweep.notify() == 1

    for way in ("expire", "reslot"):
        house.submit(way, channel=way)
    done = house.parts.catch_up.run()
    assert (done.expired, done.moved) == (1, 1)
    assert house.parts.sweep.rescue() == 0
    house.parts.reconciler.reconcile()
    assert door.verify_windows().equal
    door.rebuild_windows()
    assert door.verify_windows().equal

    assert door.count() == len(list(door.select())) == len(house.rows())
    assert door.story(first.id).message.id == first.id
    assert door.status().counts.complete
    assert door.top("recipient").tops
    found = examined(house)
    for check in ("store.answers", "store.migrations", "store.indexes", "work.channels"):
        assert found[check].level is OK, found[check]
