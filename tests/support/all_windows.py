"""What the windows of all kinds of scopes hold, and what they must hold by the store."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import select

from dispatcher.message import Status
from dispatcher.redis.keys import shard_of
from dispatcher.reservation.encoding import member_of
from dispatcher.scope import Scope, counted
from dispatcher.store.schema import VOID
from dispatcher.times.send_time import to_ms
from tests.support.house import House
from tests.support.reserving import scores
from tests.support.tables import messages

Windows = dict[str, dict[bytes, int]]
"""By the name of the key: members and their times in ms."""

_GRACE = timedelta(hours=1)
"""More than any grace of a house in tests."""


def key_of(house: House, scope: Scope) -> str:
    return house.keys(scope.home).window(scope.name, scope.kind)


def windows_of(house: House) -> Windows:
    names = house.redis.scan_iter(match=f"{{{house.settings.namespace}:*}}:window*")
    return {name.decode(): scores(house.redis, name) for name in names}


def promised(house: House) -> Windows:
    columns = (messages.c[name] for name in ("id", "scope", "channel", "scopes", "send_at", "tail"))
    query = select(*columns).where(
        messages.c.status.notin_([Status.CANCELLED.value, Status.EXPIRED.value, VOID])
    )
    found: Windows = {}
    for message_id, scope, channel, scopes, send_at, tail in house.database.run(
        lambda connection: [tuple(row) for row in connection.execute(query)]
    ):
        kinds = house.settings.quotas_of
        for each in counted(kinds, scope=scope, channel=channel, scopes=scopes):
            members = found.setdefault(key_of(house, each), {})
            members[member_of(message_id, tail)] = to_ms(cast("datetime", send_at))
    return found


def shard(house: House, scope: Scope) -> int:
    return shard_of(scope.home, house.settings.shards)


def pending_entries(house: House) -> list[bytes]:
    return [
        entry
        for keys in house.parts.fence.keys
        for entry in cast("list[bytes]", house.redis.zrange(keys.pending, 0, -1))
    ]


def let_graces_pass(house: House) -> None:
    older = -(_GRACE // timedelta(milliseconds=1))
    client: Any = house.redis
    for keys in house.parts.fence.keys:
        for entry in client.zrange(keys.pending, 0, -1):
            client.zincrby(keys.pending, older, entry)
        if client.exists(keys.epoch):
            client.hincrby(keys.epoch, "opened_at_ms", older)
