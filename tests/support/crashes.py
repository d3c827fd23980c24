"""Work that dies at a fault point, the healing of what it leaves, and whether all came right."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, cast
from uuid import UUID

import pytest
from sqlalchemy import update

from dispatcher import Dispatcher, Settings, faults
from dispatcher.faults import VARIABLE, InjectedFault, arm
from dispatcher.message import Outcome, Status
from tests.support import judge as judging
from tests.support.history import FINAL, History, read
from tests.support.house import House, let_graces_pass, pending_entries
from tests.support.lines import places, stored, terms_of, told
from tests.support.processes import forking
from tests.support.tables import messages

CHANNEL = "ledger"
ROOMY: dict[str, Any] = {
    "quotas": ["100/minute"],
    "settle": 0.05,
    "transaction_grace": 60,
    "horizon": 60,
    "redelivery_timeout": 200,
}
"""Settings with room for every message, and a rebuild that does not wait for long."""
How = Literal["kill", "raise"]
Work = Callable[..., object]
"""Takes a dispatcher, and what it is given. A function of a module: another process finds it."""

each_how = pytest.mark.parametrize(
    ("database_url", "how"),
    [pytest.param("postgresql", "kill", marks=pytest.mark.long), ("sqlite", "raise")],
    indirect=["database_url"],
)

_SECONDS = 60
_MOST_ROUNDS = 8
_LONG_AGO = timedelta(seconds=1)


def die(point: str, work: Work, settings: Settings, *arguments: Any, how: How = "kill") -> None:
    """Let work die at a point: with its process, or by an error that nobody expects.

    ``point`` may name a pass, as in ``deliver.before_send@2``.
    """
    name, _, number = point.partition("@")
    spec = f"{name}={how}" + (f"@{number}" if number else "")
    if how == "kill":
        killed = in_a_process(spec, work, settings, *arguments)
        killed.join(_SECONDS)
        assert killed.exitcode == -signal.SIGKILL, f"it was not killed at {point}"
        return
    arm(spec)
    try:
        with Dispatcher(settings) as dispatcher, suppress(InjectedFault):
            work(dispatcher, *arguments)
        assert faults._armed is not None
        assert faults._armed.passes[name] >= int(number or 1), f"it did not come to {point}"
    finally:
        arm(None)


def in_a_process(spec: str, work: Work, settings: Settings, *arguments: Any) -> Any:
    process = forking().Process(target=_run, args=(spec, work, settings, arguments), daemon=True)
    process.start()
    return process


def _run(spec: str, work: Work, settings: Settings, arguments: tuple[Any, ...]) -> None:
    os.environ[VARIABLE] = spec
    with Dispatcher(settings) as dispatcher:
        work(dispatcher, *arguments)


def heal(house: House) -> None:
    """Let claims run out and graces pass, and the sweep and a worker work until all has ended."""
    for _ in range(_MOST_ROUNDS):
        _let_claims_and_waits_pass(house)
        house.parts.sweep.rescue()
        house.parts.sweep.enqueue_due()
        for ids in published(house):
            house.deliver(*ids)
        if all(row["status"] in FINAL for row in history(house).rows.values()):
            break
    reconcile(house)


def reconcile(house: House) -> None:
    """Reconcile when all graces, and the lives of duplicates and of a rebuild, are over."""
    let_graces_pass(house)
    for pattern in ("duplicates:*", "rebuild"):
        for key in house.redis.scan_iter(match=f"{{{house.settings.namespace}:*}}:{pattern}"):
            house.redis.delete(key)
    house.parts.reconciler.reconcile()


def published(house: House) -> list[list[UUID]]:
    tasks = []
    queue = house.settings.queue_of(CHANNEL)
    while (raw := cast("bytes | None", house.broker.rpop(queue))) is not None:
        (ids, *_), *_rest = json.loads(base64.b64decode(json.loads(raw)["body"]))
        tasks.append([UUID(message_id) for message_id in ids])
    return tasks


def judge(
    house: House,
    accepted: Iterable[UUID],
    *,
    cancelled: Collection[UUID] = (),
    extra_permits: int = 0,
) -> None:
    """Fail if a promise was broken, or if Redis is not what SQL says.

    ``accepted`` is what callers were told or may find. ``extra_permits`` stay counted though
    nothing was sent.
    """
    settings = house.settings
    terms = terms_of(settings, ends=("sent", "cancelled"))
    there = places(house.redis, settings.namespace)
    known = [*told(accepted, cancelled), *lines(house), *there]
    problems = judging.judge([terms, *known, *stored(house.database, settings.quotas_of)])
    assert [*map(str, problems)] == []
    assert pending_entries(house) == []
    assert house.dispatcher.verify_windows().equal
    assert_permits_are_right(house, extra=extra_permits)


def assert_permits_are_right(house: House, *, extra: int) -> None:
    """Fail unless every attempt that may have reached the world is counted, and no other."""
    logged = [
        member
        for key in house.redis.scan_iter(
            match=f"{{{house.settings.namespace}:permits:*:log:scope:*"
        )
        for member in cast("list[bytes]", house.redis.zrange(key, 0, -1))
    ]
    assert len(logged) == len(set(logged))
    rows = house.attempt_rows()
    known = {row[0].bytes + row[1].to_bytes(4, "big") for row in rows}
    begun = {(UUID(line["id"]), line["attempt"]) for line in lines(house)}
    numbers: dict[UUID, int] = {}
    must = set()
    for row in rows:  # by token: the n-th attempt of SQL is the n-th of the ledger
        numbers[row[0]] = numbers.get(row[0], 0) + 1
        if (row[0], numbers[row[0]]) in begun:
            must.add(row[0].bytes + row[1].to_bytes(4, "big"))
    assert must <= set(logged), "a send is not counted"
    assert len(set(logged) - known) == extra, "permits of nobody are counted"


def lines(house: House) -> list[dict[str, Any]]:
    path = house.settings.channels[CHANNEL].options["path"]
    return read(house.settings.data_dir / str(path))


def history(house: House) -> History:
    return History.of(stored(house.database, house.settings.quotas_of))


def outcomes(house: House) -> dict[UUID, list[Outcome | None]]:
    known = history(house)
    return {
        UUID(id_): [attempt["outcome"] for attempt in known.attempts.get(id_, ())]
        for id_ in known.rows
    }


def _let_claims_and_waits_pass(house: House) -> None:
    now = house.database_time()

    def work(connection: Any) -> None:
        claimed = messages.c.status == Status.SENDING.value
        connection.execute(update(messages).where(claimed).values(claim_expires_at=now - _LONG_AGO))
        waiting = messages.c.status == Status.SCHEDULED.value
        connection.execute(update(messages).where(waiting).values(enqueue_at=now - _LONG_AGO))

    house.database.transact(work)
