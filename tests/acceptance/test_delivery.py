"""Nothing goes wrong: everything is sent once, at its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.support.environment import Maker

MESSAGES = 200
WITHIN_SECONDS = 4.5


def test_every_message_is_sent_once_at_its_time(environment: Maker) -> None:
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
    assert running.restarts == 0
    assert "Traceback" not in running.logs()
