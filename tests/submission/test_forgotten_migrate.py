"""Whoever forgets `dispatcher migrate` is told so, and not a hundred times a minute."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from dispatcher import Dispatcher, Draft, Settings, StoreUnavailable
from dispatcher.worker import tasks
from tests.support.environment import broker_on
from tests.support.servers import RedisServer

pytestmark = pytest.mark.every_database


@pytest.fixture
def unmigrated(empty_database_url: str, redis_server: RedisServer, tmp_path: Path) -> Settings:
    return Settings.load(
        redis_url=redis_server.url,
        broker_url=broker_on(redis_server.url),
        database_url=empty_database_url,
        data_dir=tmp_path,
        namespace="unmigrated",
    )


def test_a_submit_says_what_to_do(unmigrated: Settings) -> None:
    draft = Draft(channel="memory", recipient="ada", body={}, send_in=timedelta(hours=1))
    with Dispatcher(unmigrated) as dispatcher:
        with pytest.raises(StoreUnavailable, match="run `dispatcher migrate`"):
            dispatcher.submit_many([draft])
        with pytest.raises(StoreUnavailable, match="run `dispatcher migrate`"):
            dispatcher.submit("memory", recipient="ada", body={}, send_in=timedelta(hours=1))


def test_a_worker_says_so_once_a_minute(
    unmigrated: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "_apps", {})
    monkeypatch.setattr(tasks, "_told_at", {})
    monkeypatch.setattr(tasks, "settings_of", lambda _: unmigrated)
    failed = 0
    for duty in ("enqueue_due", "rescue", "reconcile"):
        try:
            tasks.duties[duty]()
        except StoreUnavailable:
            failed += 1
    tasks.here().close()
    assert failed > 1
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "run `dispatcher migrate`" in told[0]
