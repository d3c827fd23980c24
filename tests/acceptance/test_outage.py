"""Workers come back after an outage, to tasks that have waited in the broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Message, Status
from tests.support.environment import CHANNEL, Maker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

OVERDUE_AFTER = timedelta(seconds=6)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_overdue_messages_expire_or_are_sent_late_as_their_channel_says(
    environment: Maker, folder: Path
) -> None:
    def channel(way: str) -> dict[str, Any]:
        options = {"path": str(folder / "ledger")}
        return {"transport": "tests.support.ledger:Ledger", "options": options, "catch_up": way}

    channels = {CHANNEL: channel("send"), "codes": channel("expire")}
    running = environment(overdue_after=OVERDUE_AFTER.total_seconds(), channels=channels)
    running.down("worker")

    def submit(name: str, channel: str, after: float) -> Message:
        return running.submit(name, after, channel=channel)

    late = [submit(name, CHANNEL, after) for name in ("ada", "ben") for after in (1.0, 1.1)]
    codes = [submit(name, "codes", 1.0) for name in ("cyd", "dan")]
    back_at = codes[-1].send_at + OVERDUE_AFTER + timedelta(seconds=0.3)
    wait_until(lambda: datetime.now(UTC) > back_at)
    running.up("worker")
    running.wait_until_ended()

    assert {running.dispatcher.get(each.id).status for each in codes} == {Status.EXPIRED}
    assert not any(line.id == each.id for line in running.ledger() for each in codes)
    for each in late:
        assert running.dispatcher.get(each.id).status is Status.SENT
        [begun] = [
            line for line in running.ledger() if line.id == each.id and line.event == "begin"
        ]
        assert begun.at_us >= back_at.timestamp() * 1_000_000
    wait_until(lambda: not running.false_windows(), every=0.1)
