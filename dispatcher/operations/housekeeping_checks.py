"""Checks of what keeps the tables small: the database's housekeeping, and the duty ``prune``."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from dispatcher.errors import Unavailable
from dispatcher.operations.findings import Finding, ok, warning
from dispatcher.store import Housekeeping
from dispatcher.telemetry.liveness import MISSED_INTERVALS, Kind

if TYPE_CHECKING:
    from dispatcher.operations.doctor import Doctor

_LONG_OPEN = timedelta(minutes=10)
_MANY_TRANSACTIONS = 1_000_000
_MUCH_LOG = 2**30
_NO_HOUSEKEEPING = "this database keeps no old versions of rows"
_PRUNE_PATIENCE = timedelta(hours=1)


def store_transactions(facts: Housekeeping | None) -> Finding:
    if facts is None:
        return ok(_NO_HOUSEKEEPING)
    looked = f"; seen: {facts.limited_to}, as {facts.right} is missing" if facts.limited_to else ""
    if facts.oldest is None:
        return ok(f"none keeps old versions of rows{looked}")
    age = _rounded(facts.oldest)
    if facts.oldest < _LONG_OPEN:
        return ok(f"the oldest one is open for {age}{looked}")
    return warning(
        f"a transaction is open for {age}: the database keeps every version of a row since then, "
        "and all work on the tables gets slower and slower",
        "find it (PostgreSQL: pg_stat_activity by xact_start, and pg_prepared_xacts; MariaDB: "
        "information_schema.innodb_trx) and end it. Give the programs that do so an "
        "idle_in_transaction_session_timeout, and let backups read from a replica",
    )


def store_dead_rows(facts: Housekeeping | None) -> Finding:
    if facts is None:
        return ok(_NO_HOUSEKEEPING)
    found = ", ".join(f"{each.name} {each.versions:,}" for each in facts.backlogs)
    text = f"old versions of rows: {found}"
    if all(each.versions <= each.usual for each in facts.backlogs):
        return ok(text)
    return warning(
        f"{text}: more than is removed in time, so reads and the sweep get slower",
        "see store.transactions and store.replication first. On PostgreSQL look whether autovacuum "
        "is on and gets done (pg_stat_progress_vacuum): raise autovacuum_vacuum_cost_limit and "
        "maintenance_work_mem, or run VACUUM",
    )


def store_replication(facts: Housekeeping | None) -> Finding:
    if facts is None or not facts.slots:
        return ok("no replication slot")
    held = [
        f"{each.name} ({'' if each.is_active else 'not '}in use, "
        f"{each.kept_bytes / 2**20:,.0f} MiB of the log, rows of {each.transactions:,} "
        "transactions)"
        for each in facts.slots
        if not each.is_active
        or each.kept_bytes > _MUCH_LOG
        or each.transactions > _MANY_TRANSACTIONS
    ]
    if not held:
        return ok(f"{len(facts.slots)} in use, none far behind")
    return warning(
        f"replication slots hold back what the database could remove: {', '.join(held)}",
        "let the consumer catch up, or drop the slot: SELECT pg_drop_replication_slot('NAME'). "
        "max_slot_wal_keep_size bounds the log that is kept",
    )


def store_partitions(facts: Housekeeping | None) -> Finding:
    if facts is None or facts.days is None:
        return ok("this database keeps all messages in one table")
    ahead, misplaced = facts.days
    if ahead and not misplaced:
        return ok(f"{ahead} of the coming days have one")
    found = [
        *(["tomorrow has none"] * (not ahead)),
        *(["rows lie in the partition of other days"] * misplaced),
    ]
    return warning(
        f"{' and '.join(found)}: these messages are deleted one by one",
        "`prune` makes the partitions of the coming days: see work.prune, and look whether the "
        "role in database_url owns the tables, which it needs for that. Rows of other days go when "
        "they are older than the retention",
    )


def prune(doctor: Doctor) -> Finding:
    behind = doctor.store.not_pruned(retention=doctor.settings.retention)
    interval, age = doctor.settings.prune_interval, None
    with suppress(Unavailable):
        doctor.facts("redis")
        ages = {duty.name: duty.age for duty in doctor.signs.read()[Kind.DUTY]}
        age = ages.get("prune")
    done = f"last done {_rounded(age)} ago" if age is not None else "not done within a day"
    missed = age is not None and age > MISSED_INTERVALS * interval
    if behind > _PRUNE_PATIENCE:
        return warning(
            f"`prune` is {_rounded(behind)} behind the retention, {done}: the tables grow",
            "see work.processes and work.sweep: the same beat starts `prune`. Where it is done and "
            "stays behind, set a shorter prune_interval",
        )
    if missed:
        return warning(
            f"`prune` should be done every {interval}, {done}",
            "see work.processes and work.sweep: the same beat starts `prune`; look for its errors "
            "in the logs of the workers",
        )
    return ok(f"nothing waits for `prune`, {done}")


def _rounded(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))
