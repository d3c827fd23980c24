"""The SMTP transport keeps what every transport must keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from dispatcher.testing import TransportSuite
from dispatcher.transports import Transport
from tests.support.mail import CLOSE, HANG, MailServer, ScriptedServer, smtp

PASSWORD = "hunter2"  # noqa: S105 - looked for where it must not be
REFUSALS = [
    {"connection": "554 not you"},
    {"MAIL": "550 no"},
    {"RCPT": "451 later"},
    {"DATA": CLOSE},
    {"message": CLOSE},
    {"message": "550 spam"},
]


class TestSmtp(TransportSuite):
    recipient = "ada@example.org"
    body: Mapping[str, Any] = {"subject": "Tomorrow", "text": "See you at nine"}
    secrets = (PASSWORD,)

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[None]:
        with MailServer() as self.mail, ExitStack() as self.scripted:
            yield

    def make_transport(self) -> Transport:
        return smtp(f"smtp://127.0.0.1:{self.mail.port}", timeout=10.0)

    def make_failing(self) -> Iterable[Transport]:
        for script in REFUSALS:
            server = self.scripted.enter_context(ScriptedServer(script))
            yield smtp(f"smtp://127.0.0.1:{server.port}", timeout=10.0)
        script = {"EHLO": "250-x\r\n250 AUTH PLAIN", "AUTH": f"535 {PASSWORD}"}
        server = self.scripted.enter_context(ScriptedServer(script))
        yield smtp(f"smtp://shop:{PASSWORD}@127.0.0.1:{server.port}", timeout=10.0)

    def make_silent(self) -> tuple[Transport, float]:
        server = self.scripted.enter_context(ScriptedServer({"RCPT": HANG}))
        return smtp(f"smtp://127.0.0.1:{server.port}", timeout=0.5), 0.5

    def unsendable(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return [
            ("ada", self.body),
            ("ada@example.org, ben@example.org", self.body),
            (self.recipient, {}),
            (self.recipient, {"text": "x", "subject": "a\r\nBcc: ben@example.org"}),
        ]

    def keys_seen(self, transport: Transport) -> Sequence[str]:
        del transport
        found = [re.search(rb"Message-ID: (\S+)", each.content) for each in self.mail.taken]
        return [each[1].decode() for each in found if each]
