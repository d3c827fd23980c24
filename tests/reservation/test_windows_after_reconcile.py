"""Whatever happened, after a reconcile the windows hold exactly what the store says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import Message, QuotaExceeded, ReservationsUnavailable, Status
from dispatcher.message import new_id
from dispatcher.reservation import Terms
from tests.support.house import House, hour_ago, house_on
from tests.support.model import is_broken
from tests.support.servers import RedisServer
from tests.support.soak import examples
from tests.support.waiting import wait_until

QUOTAS = ((1, 60_000), (3, 600_000))
MINUTE = timedelta(minutes=1)

scopes = st.sampled_from(["ada", "ben", "cleo"])
events = st.one_of(
    st.tuples(st.just("submit"), scopes, st.integers(0, 20)),
    st.tuples(st.just("submit"), scopes, st.integers(0, 20)),
    st.tuples(st.just("expiring"), scopes, st.integers(0, 20)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("orphan"), scopes, st.integers(0, 20)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("reconcile"), st.just(0), st.just(0)),
)


@pytest.fixture(scope="module")
def shared(
    redis_session: RedisServer, sqlite_template: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """Give a house on SQLite that all examples share, each on emptied servers."""
    path = tmp_path_factory.mktemp("histories") / "store.db"
    shutil.copy(str(sqlite_template), path)
    with house_on(
        redis_session,
        f"sqlite:///{path}",
        clock=hour_ago(),
        quotas="1/minute, 3/10 minute",
        settle=0.001,
        reconcile_grace=0.002,
    ) as house:
        yield house


def play(house: House, event: tuple[str, object, int], accepted: list[Message]) -> None:
    kind, what, number = event
    at = house.clock.now() + number * timedelta(seconds=30)
    if kind in ("submit", "expiring"):
        expires = at + timedelta(seconds=1) if kind == "expiring" else None
        with suppress(QuotaExceeded, ReservationsUnavailable):
            accepted.append(house.submit(str(what), send_at=at, expires_at=expires))
    elif kind == "orphan":
        with suppress(QuotaExceeded, ReservationsUnavailable):
            house.parts.windows.reserve(new_id(), terms=Terms.plain(str(what)), send_at=at)
    elif kind == "flush":
        house.redis.flushall()
    elif kind == "reconcile":
        house.parts.reconciler.reconcile(settle=timedelta(0))
    elif accepted:
        message = accepted[int(str(what)) % len(accepted)]
        if kind == "deliver":
            house.deliver(message)
        elif house.again(message).status is Status.SCHEDULED:
            house.dispatcher.cancel(message.id)


@settings(max_examples=examples(60), deadline=None)
@given(history=st.lists(events, max_size=25))
def test_windows_and_store_agree_after_a_reconcile(
    shared: House, history: list[tuple[str, object, int]]
) -> None:
    shared.redis.flushall()
    shared.sql("DELETE FROM dispatcher_messages")
    shared.open()
    accepted: list[Message] = []
    for event in history:
        play(shared, event, accepted)

    def settled() -> bool:
        shared.parts.reconciler.reconcile(settle=timedelta(0))
        return shared.pending() == set()

    wait_until(settled)
    assert shared.all_members() == shared.places()
    assert {row[0] for row in shared.rows()} == {message.id for message in accepted}
    for window in shared.places().values():
        assert not any(is_broken(window.values(), quota) for quota in QUOTAS)
