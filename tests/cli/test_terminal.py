"""No terminal obeys what somebody else wrote, in whatever way a command shows it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.table import Table
from rich.text import Text

from dispatcher.cli.output import Terminal
from tests.cli.conftest import Run
from tests.support.house import House

EVIL = "\x1b]0;renamed\x07\x1b[2J\x9b31m\x85\u2028\u061c\u202ekcatta\u2069"
OBEYED = set(EVIL) - set("]0;renamed[2Jm31kcatta")


def table() -> Table:
    found = Table(EVIL)
    found.add_row(Text(EVIL))
    return found


@pytest.mark.parametrize("shown", [EVIL, Text(EVIL), table()], ids=["text", "styled", "table"])
def test_what_is_shown_is_written_out(shown: object) -> None:
    written = StringIO()
    Terminal(file=written, width=300, color_system=None).print(shown, soft_wrap=True)
    assert not OBEYED & set(written.getvalue())
    assert r"\u001b" in written.getvalue()


def test_status_top_and_verify_show_names_of_strangers(house: House, run: Run) -> None:
    """Whoever may write to Redis names scopes and workers."""
    keys = house.keys("ada")
    house.redis.zadd(keys.window(EVIL), {b"0" * 16: 4_102_488_000_000})
    house.redis.zadd(f"{{{house.settings.namespace}@signs}}:worker", {EVIL: house.redis_ms()})
    house.submit(send_at="2027-01-01T00:00Z")
    for command in (("status",), ("top",), ("windows", "verify"), ("doctor",)):
        ran = run(*command)
        assert not OBEYED & set(ran.out + ran.err), command


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_id_number_or_recipient_is_broken_over_lines(
    house: House, run: Run, columns: int
) -> None:
    messages = [
        house.submit(f"+49151123456{n:02}", send_at=f"2027-01-01T00:00:{n:02}Z") for n in range(3)
    ]
    house.change(messages[:1], status="failed", finished_at=house.database_time())
    zone = ("--zone", "Asia/Kolkata")
    for command in (("list",), ("list", *zone), ("top",), ("status",)):
        ran = run(*command, columns=columns)
        assert max(map(len, ran.out.splitlines())) <= columns, command
        if command[0] == "list":
            for each in messages:
                assert {str(each.id), each.recipient} <= set(ran.out.split())
            at = "2027-01-01 05:30:02" if zone[1] in command else "2027-01-01 00:00:02"
            assert at in ran.out
    assert {"2", "1"} <= set(run("status", columns=columns).out.split())


def test_help_shows_no_type_for_a_flag(run: Run) -> None:
    for command in ((), ("list",), ("cancel",), ("windows", "verify")):
        ran = run(*command, "--help")
        assert ran.code == 0
        assert "--help" in ran.out
        assert "bool" not in ran.out
