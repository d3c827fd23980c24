"""The digests that are stored with messages: they are compared with those of later versions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from dispatcher import Draft, Settings
from dispatcher.submission.schedule import schedule
from tests.support.house import FAR

STORED: list[tuple[dict[str, Any], str]] = [
    (
        {"send_at": "2100-01-02T10:00+01:00"},
        "5a49c8ad599d8e72a510914cb269ea51481adf6ebe70363fbf3d0f2e3d4ba56e",
    ),
    (
        {"send_in": timedelta(hours=1)},
        "6bc46994725729481be048c4481f5fc94063225f7ae5f55ac0b4f5355ddcec41",
    ),
    (
        {
            "send_at": "2100-01-02T09:00Z", "scope": "team", "scopes": {"tenant": "acme"},
            "expires_at": "2100-01-03T09:00Z", "on_conflict": "shift",
        },
        "328894d3b7da40eaedc9fb342b8a77127de55826a68a02738b35422f3c32802d",
    ),
]  # fmt: skip


WITH_LENGTH = "637120a85c5d46290486356edb21ed00e315dfaa3d1b288fbe173666d6377ce3"


@pytest.mark.parametrize("moment", [FAR, FAR + timedelta(microseconds=1)], ids=["even", "odd"])
def test_a_length_has_one_digest_whenever_it_is_judged(moment: datetime) -> None:
    settings = Settings.load(channels={"memory": {"transport": "memory"}})
    draft = Draft(
        channel="memory", recipient="ada", body={}, idempotency_key="key",
        send_in=timedelta(hours=1), expire_after=timedelta(hours=1), on_unknown="hold",
    )  # fmt: skip
    assert schedule(draft, settings=settings, now=moment).fingerprint == WITH_LENGTH


@pytest.mark.parametrize(("asked", "digest"), STORED)
def test_a_draft_without_zone_and_hours_has_the_digest_it_always_had(
    asked: dict[str, Any], digest: str
) -> None:
    settings = Settings.load(
        channels={"memory": {"transport": "memory"}}, scopes={"tenant": {"quotas": "9/day"}}
    )
    draft = Draft(
        channel="memory", recipient="ada", body={"text": "hello"}, idempotency_key="key", **asked
    )
    assert schedule(draft, settings=settings, now=FAR).fingerprint == digest
