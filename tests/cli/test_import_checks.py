"""``dispatcher import`` and rows that their channel's transport could never send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dispatcher import InvalidDraft
from dispatcher.transports import MemoryTransport
from tests.cli.conftest import Run
from tests.support.house import House


class Numbers(MemoryTransport):
    """Sends to numbers only."""

    @staticmethod
    def check(recipient: str, body: Mapping[str, Any]) -> None:
        if not recipient.isdigit():
            raise InvalidDraft("recipient", "letters", f"digits for {sorted(body)}")


def test_a_row_that_could_never_be_sent_is_refused_with_its_reason(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = {"memory": {"transport": f"{__name__}:Numbers"}}
    monkeypatch.setenv("DISPATCHER_CHANNELS", json.dumps(channels))
    row = {"channel": "memory", "text": "hello", "send_at": "2028-01-01T11:11:11Z"}
    rows = [row | {"recipient": recipient} for recipient in ("4711", "ada", "4712")]
    Path("rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert run("import", "rows.jsonl").code
    [refused] = Path("rows.rejected.jsonl").read_text().splitlines()
    assert ("ada" in refused, "4711" in refused) == (True, False)
    assert "recipient: letters; accepted: digits for ['text']" in refused
    assert len(house.rows()) == 2
