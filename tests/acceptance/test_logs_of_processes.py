"""What a real worker and real beats write at DEBUG: lines of JSON, and no secret in any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.message import Message
from tests.support.environment import Environment, Maker, dispatcher_command
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import wait_until

BODY, RECIPIENT = "canary-body-5711", "canary-recipient-5712"
SCOPE, TOKEN = "canary-scope-5713", "canary-token-5714"
PASSWORD, LOG_KEY = "canary-password-5715", "canary-log-key-5716"
SECRETS = (BODY, RECIPIENT, SCOPE, TOKEN, PASSWORD, LOG_KEY)
SERVICES = {
    "worker": dispatcher_command("worker", "--loglevel=DEBUG"),
    "beat-1": dispatcher_command("beat", "--loglevel=DEBUG"),
}


class Quoting:
    """Crashes at the first try of each message and quotes all it knows; takes the second."""

    def __init__(self, token: str) -> None:
        self._token = token

    def send(self, message: Message) -> str:
        if message.attempt_count == 1:
            raise RuntimeError(f"{self._token} {message.recipient} {dict(message.body)} {vars()}")
        return f"{self._token} {message.recipient}"


def lines(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return what was written, and how many lines are broken.

    What a process has half written when it ends, the next one goes on behind.
    """
    told_lines, broken = [], 0
    for name in SERVICES:
        text = (folder / f"{name}.log").read_text(errors="replace")
        whole, _, _ = text.rpartition("\n")  # the last one may be half written
        for line in whole.split("\n"):
            if line.startswith("{"):
                try:
                    told_lines.append(json.loads(line))
                except ValueError:
                    broken += 1
    return told_lines, broken


def told(folder: Path) -> set[str]:
    return {line["transition"] for line in lines(folder)[0] if "transition" in line}


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_no_process_writes_a_secret(
    environment: Maker,
    folder: Path,
    postgres: PostgresServer,
    postgres_name: str,
    own_redis: RedisServer,
) -> None:
    with own_redis.client() as client, Proxy(own_redis.socket) as line:
        client.execute_command(
            "ACL", "SETUSER", "canary", "on", f">{PASSWORD}", "~*", "&*", "+@all"
        )
        redis_url = f"redis://canary:{PASSWORD}@127.0.0.1:{line.port}"
        quoting = {"transport": f"{__name__}:Quoting", "options": {"token": TOKEN}}
        running = environment(
            services=SERVICES,
            redis_url=f"{redis_url}/0",
            broker_url=f"{redis_url}/1",
            database_url=postgres.url(postgres_name).replace("postgres@", f"postgres:{PASSWORD}@"),
            channels={"quoting": {**quoting, "backoff_base": 0.1, "max_attempts": 3}},
            quotas="100/minute",
            log_format="json",
            log_key=LOG_KEY,
        )
        wait_until(lambda: submitted(running))
        wait_until(lambda: {"retried", "sent"} <= told(folder))
        line.cut_all()
        wait_until(lambda: submitted(running))
        running.wait_until_ended()
    written = [path.read_text(errors="replace") for path in sorted(folder.glob("*.log"))]
    assert len(written) == len(SERVICES)
    assert [text for text in written if any(secret in text for secret in SECRETS)] == []
    told_lines, broken = lines(folder)
    assert broken <= running.restarts
    sent = [line for line in told_lines if line.get("transition") == "sent"]
    assert {line["channel"] for line in sent} == {"quoting"}
    assert len({line["recipient"] for line in sent}) == 1
    assert {line["level"] for line in told_lines} >= {"DEBUG", "INFO", "WARNING"}


def submitted(running: Environment) -> bool:
    """Submit one more, as soon as it is accepted."""
    if not running.accepts():
        return False
    running.submit(
        RECIPIENT, channel="quoting", scope=SCOPE, body={"text": BODY}, on_conflict="shift"
    )
    return True
