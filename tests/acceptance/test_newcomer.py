"""What somebody new tries first, by commands alone: e-mail, a refusal, a move, a kill."""

from __future__ import annotations

import email
import email.policy
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.acceptance.test_up import Shell, up
from tests.support.environment import dispatcher_command
from tests.support.mail import MailServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

ZONE = "Asia/Kolkata"
SETTINGS = """
quotas = ["1/minute", "5/hour"]

[channels.email]
transport = "smtp"
options = { url = "smtp://127.0.0.1:1025", from = "mail@shop.example" }
"""
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def test_from_the_first_email_to_a_worker_that_is_killed(folder: Path) -> None:
    shell = Shell(folder, "shop")
    shell.prepare()
    with MailServer() as sink:
        options = (
            f'options = {{ url = "smtp://127.0.0.1:{sink.port}", from = "mail@shop.example" }}'
        )
        (shell.cwd / "dispatcher.toml").write_text(
            f'quotas = ["1/minute", "5/hour"]\n[channels.email]\ntransport = "smtp"\n{options}\n'
        )
        with up(shell), watching(shell) as looks:
            play(shell, sink, looks)


def play(shell: Shell, sink: MailServer, looks: Iterator[Any]) -> None:
    began = time.monotonic()
    shell.ask("status")
    commands = timedelta(seconds=round(4 * (time.monotonic() - began)))  # two come before then
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5) + commands
    local = at.astimezone(ZoneInfo(ZONE)).replace(tzinfo=None).isoformat()
    to = ("submit", "--channel", "email", "--recipient", "ada@example.org", "--text", "See you")
    when = ("--send-at", local, "--zone", ZONE)
    first = shell.ask(*to, *when)
    assert datetime.fromisoformat(first["send_at"]) == at

    refused = shell.run(*to, *when, "--json")
    slot = json.loads(refused.stdout)["next_slot"]
    assert (refused.returncode, datetime.fromisoformat(slot)) == (3, at + MINUTE)
    second = shell.ask(*to, "--send-at", slot)

    seen = (each["counts"].get("email", {}) for each in looks)
    assert next(each for each in seen if each.get("sent"))["scheduled"] == 1
    [mail] = sink.taken
    parsed = email.message_from_bytes(mail.content, policy=email.policy.default)
    assert (mail.recipients, parsed["Message-ID"]) == (
        ["ada@example.org"], f"<{first['id']}@shop.example>",
    )  # fmt: skip
    assert parsed["Date"].datetime >= at, "not early"

    moved = shell.ask("reschedule", second["id"], "--later", "1 hour")
    assert datetime.fromisoformat(moved["send_at"]) == at + MINUTE + HOUR
    assert shell.ask("cancel", second["id"])["status"] == "cancelled"

    [worker] = shell.ask("status")["workers"]
    os.kill(int(worker["name"].split()[-1]), signal.SIGKILL)
    third = shell.ask(*to[:4], "ben@example.org", *to[5:], "--send-in", "1 second")
    shell.wait_until_sent(third)
    assert [each.recipients for each in sink.taken] == [["ada@example.org"], ["ben@example.org"]]
    wait_until(lambda: alive(shell) - {worker["name"]}, every=0.5)


def alive(shell: Shell) -> set[str]:
    return {each["name"] for each in shell.ask("status")["workers"] if each["alive"]}


@contextmanager
def watching(shell: Shell) -> Iterator[Iterator[Any]]:
    command = dispatcher_command("status", "--watch", "--every", "0.5", "--json")
    with subprocess.Popen(
        command, cwd=shell.cwd, env=shell.env, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        yield map(json.loads, child.stdout)
        child.send_signal(signal.SIGINT)
        child.stdout.read()
        assert child.wait(60) == 0
