"""Whole environments for acceptance tests."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import SERVICES, Environment, Maker, broker_on, short_settings
from tests.support.servers import RedisServer

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    outcome = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or outcome.failed
    return outcome


@pytest.fixture
def environment(
    request: pytest.FixtureRequest, folder: Path, database_url: str, own_redis: RedisServer
) -> Iterator[Maker]:
    """Give a maker of a running environment; takes services and settings. One Redis holds all."""
    with ExitStack() as stack:

        def make(
            *, services: Mapping[str, Sequence[str]] = SERVICES, **settings: Any
        ) -> Environment:
            addresses = {
                "database_url": database_url,
                "redis_url": own_redis.url,
                "broker_url": broker_on(own_redis.url),
            }
            values = {**addresses, **settings}
            made = Environment(folder, short_settings(folder, **values), services)
            stack.callback(show_logs_of_failure, request.node, made)
            return stack.enter_context(made)

        yield make


@pytest.fixture
def own_broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def show_logs_of_failure(item: pytest.Item, environment: Environment) -> None:
    if item.stash.get(_FAILED, False):
        sys.stderr.write(environment.logs())
