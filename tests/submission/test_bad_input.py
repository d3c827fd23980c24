"""Bad input is refused by a typed error, and reaches neither Redis nor SQL nor the broker."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Dispatcher, InvalidDraft, InvalidValue, Settings, UnknownChannel
from tests.support.clock import MovableClock
from tests.support.house import FAR, House, house_on
from tests.support.refusals import BAD, CANARY, Bad
from tests.support.servers import RedisServer
from tests.support.soak import a_third_of


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(
    request: pytest.FixtureRequest,
    redis_session: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """Give a house with a message in it, shared by the module: nothing here may change it."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("bad") / "store.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        url = f"sqlite:///{path}"
    else:
        server = request.getfixturevalue("postgres")
        name = server.create_database(request.getfixturevalue("postgres_template"))
        url = server.url(name)
    with redis_session.client() as client:
        client.flushall()
    with house_on(redis_session, url) as house:
        house.submit(send_in=timedelta(seconds=1), idempotency_key="taken")
        yield house
    if request.param == "postgresql":
        server.drop_database(name)


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dispatcher]:
    """Give a dispatcher whose servers are nowhere: whatever touches one of them is Unavailable."""
    nowhere: Path = tmp_path_factory.mktemp("nowhere")
    settings = Settings.load(
        redis_url=f"unix://{nowhere}/redis.sock",
        broker_url=f"redis+socket://{nowhere}/redis.sock",
        database_url=f"sqlite:///{nowhere}/missing/store.db",
        data_dir=nowhere,
    )
    with Dispatcher(settings, clock=MovableClock(FAR)) as dispatcher:
        yield dispatcher


@pytest.mark.parametrize("bad", a_third_of(BAD))
def test_bad_input_is_refused_and_leaves_nothing(full: House, bad: Bad) -> None:
    before = full.snapshot()
    with pytest.raises(bad.error) as caught:
        getattr(full.dispatcher, bad.method)(*bad.positional, **bad.arguments())
    error = caught.value
    assert type(error) is bad.error
    assert error.field == bad.field
    assert error.problem
    assert error.accepted
    assert str(error) == f"{error.field}: {error.problem}; accepted: {error.accepted}"
    assert CANARY not in f"{error!r}"
    assert str(error).isprintable(), "the text can be written to any log or terminal"
    assert full.snapshot() == before


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_judged_before_any_server_is_asked(unreachable: Dispatcher, bad: Bad) -> None:
    with pytest.raises(bad.error):
        getattr(unreachable, bad.method)(*bad.positional, **bad.arguments())


@pytest.mark.parametrize("given", [None, 5, object()])
@pytest.mark.parametrize(
    ("method", "field", "more"),
    [
        ("submit_many", "drafts", {}),
        ("submit_many", "drafts", {"on_conflict": "shift"}),
        ("submit_many", "drafts", {"atomic": True}),
        ("plan", "drafts", {}),
        ("cancel_many", "message_ids", {}),
        ("reschedule_many", "message_ids", {"send_in": timedelta(hours=1)}),
        ("retry_many", "message_ids", {}),
    ],
)
def test_what_is_no_list_is_refused(
    unreachable: Dispatcher, method: str, field: str, more: dict[str, Any], given: Any
) -> None:
    with pytest.raises(InvalidDraft) as refused:
        getattr(unreachable, method)(given, **more)
    assert refused.value.field == field


def test_an_unreadable_quota_of_refusals_is_named(unreachable: Dispatcher) -> None:
    with pytest.raises(InvalidValue) as refused:
        unreachable.refusals(quota="often")
    assert refused.value.field == "quota"


def test_an_unknown_channel_says_which_are_known(full: House) -> None:
    with pytest.raises(UnknownChannel) as caught:
        full.submit(channel="fax")
    assert caught.value.channel == "fax"
    assert caught.value.known == ("console", "file", "memory")
    assert str(caught.value) == (
        "channel: there is no channel 'fax'; accepted: one of console, file, memory"
    )


def test_the_limits_of_a_body_are_those_of_the_settings(
    redis_session: RedisServer, full: House
) -> None:
    with house_on(redis_session, full.url, body_max_bytes=10, body_max_depth=2) as strict:
        before = strict.snapshot()
        bodies: list[dict[str, Any]] = [{"text": "xx"}, {"a": {"b": {}}}]
        for body in bodies:
            with pytest.raises(InvalidDraft, match="at most 10 bytes and 2 levels"):
                strict.submit("dora", body=body)
        assert strict.snapshot() == before


def test_a_bad_recipient_of_a_next_slot_is_named_so(full: House) -> None:
    with pytest.raises(InvalidDraft) as caught:
        full.dispatcher.next_slot(recipient="a\nb")
    assert caught.value.field == "recipient"


@pytest.mark.parametrize(
    "filters",
    [
        {"recipient": "a\0b"},
        {"recipient": "\ud800"},
        {"recipient": ["ada"]},
        {"channel": "a\0"},
        {"channel": 5},
    ],
    ids=ascii,
)
def test_a_bad_filter_is_refused(full: House, filters: dict[str, Any]) -> None:
    with pytest.raises(InvalidDraft) as caught:
        [*full.dispatcher.select(**filters)]
    assert caught.value.field in filters


PUBLIC = [
    name for name, each in vars(Dispatcher).items() if callable(each) and not name.startswith("_")
]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_filter_that_does_not_exist_is_a_type_error_of_every_method(
    unreachable: Dispatcher, name: str
) -> None:
    """A misspelt one counted, listed and changed everything."""

    async def called() -> None:
        result = getattr(unreachable, name)(recipent="ada")
        if inspect.isawaitable(result):
            await result
        elif isinstance(result, AsyncIterator):
            await anext(result)

    with pytest.raises(TypeError, match="recipent"):
        asyncio.run(called())


def test_the_methods_with_filters_are_among_them() -> None:
    assert {"list", "select", "count"} <= {*PUBLIC}
    assert {"cancel_many", "reschedule_many", "retry_many"} <= {*PUBLIC}
