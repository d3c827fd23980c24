"""PostgreSQL: deliveries find rows by their ids, whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, true

from dispatcher.message import Outcome, Status
from dispatcher.store.claims import ClaimChanges, claim_at_once
from dispatcher.store.database import Database, GivenRow, GuardedChange, arrays
from tests.store.plans import asked_of, plan_of
from tests.support.tables import TABLES

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

LIVE = ("dispatcher_messages_live", "dispatcher_attempts_live")
GROUP = 50


@pytest.mark.parametrize("is_generic", [False, True])
def test_a_vacuum_that_counts_no_row_leaves_the_look_ups_by_id(
    database: Database, *, is_generic: bool
) -> None:
    """A delivery stays quick beside a transaction that keeps dead rows.

    Where a vacuum has counted no row, PostgreSQL takes a read of a whole index for as cheap as one
    look-up. Beside an open transaction that index has an entry for each dead row.
    """
    with database.engine.connect() as connection:
        sql = connection.execution_options(isolation_level="AUTOCOMMIT")
        sql.exec_driver_sql(f"VACUUM {', '.join(LIVE)}")
        for statement, values in asked_for_a_group(database, sql):
            plan = generic_plan(sql, statement) if is_generic else plan_of(sql, statement, values)
            reads = [each for each in nodes(plan) if is_of_live(each)]
            assert reads, statement
            for each in reads:
                looked_up = str(each.get("Index Cond", each.get("Recheck Cond")))
                assert "id = " in looked_up, f"{statement}\n\n{each}"


def asked_for_a_group(database: Database, connection: Connection) -> list[tuple[str, Any]]:
    """Run every statement that a delivery runs for a group; return them with their values."""
    group: list[GivenRow] = [
        {
            "id": uuid4(), "token": 1, "wait": 1.0, "enqueue": 1.0, "more": 0, "error": "no answer",
            "outcome": Outcome.TEMPORARY.value, "receipt": None, "status": Status.SCHEDULED.value,
            "may_expire": 1,
        }
        for _ in range(GROUP)
    ]  # fmt: skip
    ids: list[UUID] = [row["id"] for row in group]
    changes = ClaimChanges(database)
    with asked_of(connection) as asked:
        for name, each in vars(ClaimChanges).items():
            if isinstance(each, cached_property):
                change: GuardedChange = getattr(changes, name)
                change.run(connection, group)
        claim = {"ids": ids, "mark": uuid4(), "ahead": 0.0, "ttl": 30.0}
        connection.execute(claim_at_once(TABLES, true()), claim)
        connection.execute(changes.sent_at_once(), arrays(group, ("id", "token", "receipt")))
        snoozed = arrays(group, ("id", "token", "wait", "enqueue"))
        connection.execute(changes.snoozed_at_once(), snoozed)
    assert len(asked) > 10
    return asked


def generic_plan(connection: Connection, statement: str) -> dict[str, Any]:
    """Return the plan of a prepared statement for any values."""
    names: dict[str, int] = {}
    numbered = re.sub(
        r"%\((\w+)\)s", lambda name: f"${names.setdefault(name[1], len(names) + 1)}", statement
    )
    [found] = connection.exec_driver_sql(
        f"EXPLAIN (FORMAT JSON, GENERIC_PLAN) {numbered}"
    ).scalar_one()
    plan: dict[str, Any] = found["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a plan and all below it."""
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


def is_of_live(node: dict[str, Any]) -> bool:
    """Whether it reads rows of what lives. A bitmap's index is read below the node of its rows."""
    return node.get("Relation Name") in LIVE and "Scan" in node["Node Type"]
