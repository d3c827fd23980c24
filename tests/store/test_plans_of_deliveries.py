"""PostgreSQL: deliveries find rows by their ids, whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from dispatcher.store.claims import Claim, Claims, Success
from dispatcher.store.database import Database
from tests.store.plans import asked_of, plan_of
from tests.support import rows

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
        for statement, values in asked_for_a_group(database):
            plan = generic_plan(sql, statement) if is_generic else plan_of(sql, statement, values)
            reads = [node for node in nodes(plan) if is_of_live(node)]
            assert reads, statement
            for node in reads:
                looked_up = str(node.get("Index Cond", node.get("Recheck Cond")))
                assert "id = " in looked_up, f"{statement}\n\n{node}"


def asked_for_a_group(database: Database) -> list[tuple[str, Any]]:
    """Run every statement by which a delivery finds its group; return them with their values.

    The messages are not stored: so each single statement leaves all of them to the steps, which
    then run, too.
    """
    claims = Claims(database, ttl=rows.TTL)
    group = [Claim(rows.a_message(), 1) for _ in range(GROUP)]
    ids = [claim.message.id for claim in group]
    with asked_of(database.engine) as asked:
        claims.claim(ids)
        claims.renew(group)
        claims.record([Success(claim, None) for claim in group], [], enqueue_in=rows.SOON)
        claims.put_back([(claim, rows.SOON) for claim in group], enqueue_in=rows.SOON)
        claims.unclaimed(ids)
        claims.enqueue_when_due(ids)
    assert len(asked) > 8
    return [
        (statement, values[0] if isinstance(values, list) else values)
        for statement, values in asked
        if values  # all but BEGIN and COMMIT
    ]


def generic_plan(connection: Connection, statement: str) -> dict[str, Any]:
    """Return the plan of a prepared statement for any values."""
    names: dict[str, int] = {}
    numbered = re.sub(
        r"%\((\w+)\)s", lambda name: f"${names.setdefault(name[1], len(names) + 1)}", statement
    )
    [answer] = connection.exec_driver_sql(
        f"EXPLAIN (FORMAT JSON, GENERIC_PLAN) {numbered}"
    ).scalar_one()
    plan: dict[str, Any] = answer["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a plan and all below it."""
    yield plan
    for node in plan.get("Plans", []):
        yield from nodes(node)


def is_of_live(node: dict[str, Any]) -> bool:
    """Whether it reads rows of what lives. A bitmap's index is read below the node of its rows."""
    return node.get("Relation Name") in LIVE and "Scan" in node["Node Type"]
