"""Log lines that tell what becomes of messages, and how they are written."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.serve import logging_to
from dispatcher.cli.services import JsonFormatter
from dispatcher.telemetry.journal import FIELDS, Journal, Transition
from dispatcher.testing import a_message

KEY = "sixteen letters and more"
ADA = "ada@example.org"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "dispatcher.journal")
    return caplog


def digest(caplog: pytest.LogCaptureFixture, recipient: str, key: str = KEY) -> str | None:
    caplog.clear()
    Journal(log_key=key).tell(Transition.SENT, a_message(recipient=recipient))
    found: str | None = vars(caplog.records[0]).get("recipient")
    return found


def test_a_line_tells_its_facts_as_text_and_as_fields(lines: pytest.LogCaptureFixture) -> None:
    message = a_message()
    Journal().tell(
        Transition.RETRIED, message, attempt=2, outcome="temporary", wait_seconds=timedelta(0, 1.5)
    )
    [record] = lines.records
    assert record.getMessage() == (
        f"message {message.id} retried channel={message.channel} "
        "attempt=2 outcome=temporary wait_seconds=1.5"
    )
    told = {name: vars(record)[name] for name in FIELDS if name in vars(record)}
    assert told == {
        "transition": "retried",
        "message_id": str(message.id),
        "channel": message.channel,
        "attempt": 2,
        "outcome": "temporary",
        "wait_seconds": 1.5,
    }


def test_lines_of_one_recipient_are_joined_by_a_digest_that_needs_the_key(
    lines: pytest.LogCaptureFixture,
) -> None:
    ada = digest(lines, ADA)
    assert ada is not None
    assert len(ada) == 16
    assert int(ada, 16)
    assert ada == digest(lines, ADA)
    assert ada != digest(lines, "ben@example.org")
    assert ada != digest(lines, ADA, key=KEY + "!")
    assert digest(lines, ADA, key="") is None
    assert digest(lines, "lone \ud800 surrogate") is not None
    journal = Journal(log_key=KEY)
    assert KEY not in repr(journal) + repr(vars(journal))


def test_a_meter_that_fails_stops_counting_and_nothing_else(
    lines: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []

    class Full:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            raise OSError("no space left on device")

    full: Any = Full()
    journal = Journal(meter=full)
    for _ in range(2):
        journal.tell(Transition.SENT, a_message())
        journal.count(lambda meter: meter.swept("rescue", {}))
    assert calls == ["on_event"]
    said = [each.getMessage() for each in lines.records if each.levelname == "ERROR"]
    assert said == ["metrics stopped in this process; restart it"]
    assert len(lines.records) == 3


def record(**more: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "dispatcher.journal", "levelname": "INFO", "msg": "a %s", "args": ("text",)} | more
    )


def test_a_line_of_json_has_the_fields_and_nothing_that_others_attach() -> None:
    at = datetime(2026, 3, 29, 1, 2, 3, 456_000, tzinfo=UTC)
    written = JsonFormatter().format(
        record(created=at.timestamp(), transition="sent", attempt=1, data={"args": "secret"})
    )
    assert json.loads(written) == {
        "at": "2026-03-29T01:02:03.456Z",
        "level": "INFO",
        "logger": "dispatcher.journal",
        "process": record().process,
        "text": "a text",
        "transition": "sent",
        "attempt": 1,
    }


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("two\nlines")  # noqa: TRY301 - it is to be caught
    except ValueError:
        written = JsonFormatter().format(record(exc_info=sys.exc_info()))
    assert "\n" not in written
    assert json.loads(written)["traceback"].endswith("ValueError: two\nlines")


def test_the_log_of_the_page_has_the_form_that_the_settings_name(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "page.log"
    with logging_to(file, "json"):
        logging.getLogger("dispatcher.web.pages.site").info("a text")
    with logging_to(file, "console"):
        logging.getLogger("dispatcher.web.pages.site").info("another")
    first, second = file.read_text().splitlines()
    assert json.loads(first)["text"] == "a text"
    assert second.endswith("INFO] another")
