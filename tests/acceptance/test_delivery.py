"""Nothing goes wrong: everything is sent once, at its time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.checks import lateness_ms
from tests.support.environment import Maker

MESSAGES = 200
WITHIN_SECONDS = 4.5


def test_every_message_is_sent_once_at_its_time(
    environment: Maker, folder: Path, report: Callable[[str], None]
) -> None:
    running = environment()
    start = datetime.now(UTC) + timedelta(seconds=3)

    def at(number: int) -> datetime:
        planned = start + timedelta(seconds=WITHIN_SECONDS * number / MESSAGES)
        # A busy machine is slow to accept them.
        return max(planned, datetime.now(UTC) + timedelta(seconds=1))

    accepted = [
        running.submit(f"person-{number}", body={"number": number}, send_at=at(number))
        for number in range(MESSAGES)
    ]
    running.wait_until_ended()
    running.check(accepted)
    late = lateness_ms(running.ledger())
    report(
        f"{len(late)} messages late by p50 {late[len(late) // 2]:.0f} ms, "
        f"p99 {late[len(late) * 99 // 100]:.0f} ms, longest {late[-1]:.0f} ms"
    )
    assert running.restarts == 0
    assert "Traceback" not in running.logs()
