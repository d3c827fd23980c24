"""What a terminal shows: no foreign text is obeyed, no id, number, instant or name is broken."""

from __future__ import annotations

from uuid import UUID

import pytest

from dispatcher.operations import verification
from tests.cli.conftest import Run
from tests.support.examples import a_third_of
from tests.support.house import House

EVIL = "\x1b]0;renamed\x07\x1b[2J\x9b31m\x85\u2028\u061c\u202ekcatta\u2069"
OBEYED = set(EVIL) - set("]0;renamed[2Jm31kcatta")


def test_status_top_and_verify_show_names_of_strangers(house: House, run: Run) -> None:
    """Whoever may write to Redis names scopes and workers."""
    keys = house.keys("ada")
    house.redis.zadd(keys.window(EVIL), {b"0" * 16: 4_102_488_000_000})
    house.redis.zadd(f"{{{house.settings.namespace}@signs}}:worker", {EVIL: house.redis_ms()})
    house.submit(send_at="2027-01-01T00:00Z")
    for command in (("status",), ("top",), ("windows", "verify"), ("doctor",)):
        ran = run(*command)
        assert not OBEYED & set(ran.out + ran.err), command


NAME = "someone.with.a.long.name@department.of.a.company.shop.example"
AT = "2028-01-01T11:11:11Z"
STRANGER = UUID(int=2**127 + 1)

# fmt: off
SHOWN = [
    ("list", {"{id}", NAME, "2028-01-01 11:11:11"}),
    ("show {id}", {"{id}", NAME, f"{NAME}-key", "11:11:11.000", "2028-01-01T11:11:11.000Z"}),
    ("show {held}", {"{held}", NAME, "'550", f"<{NAME}>"}),
    ("held", {"{held}", NAME, "1 of 10"}),
    ("suppressed", {f"x{NAME}", "memory"}),
    (f"timeline {NAME} --start {AT} --hours 2", {NAME, "1/1", "1/10", "11:12:12"}),
    (f"timeline {NAME} --channel memory --start {AT} --hours 2", {NAME, "1/10"}),
    (f"timeline x{NAME}", {f"x{NAME}"}),
    ("doctor", {"redis.vulnerabilities", "CVE-2025-46819"}),
    ("windows verify", {"{stranger}", "{id}", NAME, f"x{NAME}", "2028-01-01T11:11:11.000Z"}),
    ("status", {"2", "none"}),
]
# fmt: on


@pytest.fixture
def ids(house: House, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Give a booked message, a held one, an opt-out, and windows that differ from the store."""
    monkeypatch.setattr(verification, "_BETWEEN_LOOKS_SECONDS", 0.01)
    message = house.submit(NAME, send_at=AT, idempotency_key=f"{NAME}-key")
    other = house.submit(NAME, send_at="2028-01-01T11:13:11Z")
    held = house.submit(f"h{NAME}", on_unknown="hold")
    house.parts.delivery.claims.claim([held.id])
    house.end_claims(held)
    house.parts.sweep.rescue()
    house.change([held], last_error=f"'550 <{NAME}> is {'not known, ' * 9}here'")
    house.dispatcher.suppress(f"x{NAME}", channel="memory")
    window = house.keys(NAME).window(NAME)
    house.redis.zrem(window, message.id.bytes)
    house.redis.zadd(window, {message.id.bytes: 1_830_337_872_000})  # a second late
    house.redis.zrem(window, other.id.bytes)
    elsewhere = house.keys(f"x{NAME}").window(f"x{NAME}")
    house.redis.zadd(elsewhere, {STRANGER.bytes: 1_830_337_871_000})
    return {"id": message.id, "held": held.id, "stranger": STRANGER}


@pytest.mark.parametrize("columns", a_third_of([80, 120]))
def test_nothing_is_broken_over_lines(ids: dict[str, object], run: Run, columns: int) -> None:
    for command, words in SHOWN:
        ran = run(*command.format(**ids).split(), columns=columns)
        for line in ran.out.splitlines():
            assert len(line) <= columns, line
        for word in words:
            assert word.format(**ids) in ran.out, command
