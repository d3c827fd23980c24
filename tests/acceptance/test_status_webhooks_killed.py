"""Workers are killed while they tell who asked: everybody is told, with a right signature."""

from __future__ import annotations

import base64
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from dispatcher.transports.webhook import receiver_secret
from tests.support.environment import CHANNEL, Maker
from tests.support.http_receiver import Handler, Receiver, pause, receiving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

MANY = 60
SECRET = "whsec_" + base64.b64encode(b"a key of some twenty-nine bytes").decode()


def slowly(handler: Handler) -> None:
    """Answer in a while; at first that it is not the time."""
    pause(0.1)
    handler.reply(503 if len(handler.server.received) <= MANY // 4 else 204)


def has_got(receiver: Receiver, many: int) -> bool:
    return len(receiver.received) >= many


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_status_webhooks_arrive_though_processes_are_killed(
    environment: Maker, folder: Path
) -> None:
    with receiving() as receiver:
        receiver.answer = slowly
        told = {
            "payload": "body", "secrets": [SECRET], "http": True, "allow": ["127.0.0.1"],
            "ports": [receiver.port],
        }  # fmt: skip
        ledger = {
            "transport": "tests.support.ledger:Ledger",
            "options": {"path": str(folder / "ledger")},
        }
        status = {
            "transport": "webhook", "options": told, "backoff_base": 0.2, "max_attempts": 50,
            "senders": 4,
        }  # fmt: skip
        running = environment(
            channels={CHANNEL: ledger, "status": status}, status_channel="status",
            quotas="1/10 second",
        )  # fmt: skip
        accepted = [
            running.submit(f"person {number}", status_url=receiver.url if number else None)
            for number in range(MANY + 1)
        ]
        for seen in (1, MANY // 2, MANY):
            wait_until(partial(has_got, receiver, seen), every=0.001)
            running.kill("worker")
        expected = Counter(str(each.id) for each in accepted[1:])

        def found() -> Counter[str]:
            with receiver.lock:
                requests = list(receiver.received)
            theirs = Webhook(receiver_secret(SECRET, receiver.url))
            bodies = [theirs.verify(each.content, each.headers) for each in requests]
            assert {each["type"] for each in bodies} <= {"message.sent"}
            return Counter(each["data"]["id"] for each in bodies)

        wait_until(lambda: found() >= expected, every=0.1)
        running.wait_until_ended()
        assert found().keys() == expected.keys(), "nobody is told who did not ask"
        rows = running.rows()
        assert len(rows) == len(accepted) + MANY, "one status message for each"
        assert {row.status for row in rows} == {"sent"}
        assert running.dispatcher.verify_windows().equal
