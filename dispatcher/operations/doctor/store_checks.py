"""Checks of the database."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.operations.doctor.finding import Check, Level, Verdict, check, error, ok, warning
from dispatcher.store import Durability, SchemaStanding

_UNIQUE = "messages_idempotency_key"
_MIGRATE = "run `dispatcher migrate`"


class StoreFacts(NamedTuple):
    """Facts of the database. ``missing_indexes`` is None while it has no tables."""

    standing: SchemaStanding
    missing_indexes: tuple[str, ...] | None
    durability: Durability


@check("store.migrations")
def migrations(facts: StoreFacts) -> Verdict:
    """Compare the schema with the one that this version needs."""
    standing = facts.standing
    if standing.obstacle is not None:
        return error(
            f"the database cannot be migrated: {standing.obstacle.found}",
            standing.obstacle.remedy,
            stops_worker=True,
        )
    if not standing.is_known:
        return warning(
            f"the database is at revision {standing.revision}, which this version does not know",
            "finish the roll-out: processes of this version beside a later schema are fine for a "
            "while, not for good",
        )
    if not standing.missing:
        return ok(f"at revision {standing.revision}")
    missing = ", ".join(standing.missing)
    there = f"at revision {standing.revision}" if standing.revision else "without tables"
    return error(
        f"the database is {there}; missing: {missing}", f"{_MIGRATE} first", stops_worker=True
    )


@check("store.indexes")
def indexes(facts: StoreFacts) -> Verdict:
    """Find missing indexes, without which each sweep reads all messages."""
    missing = facts.missing_indexes
    if missing is None:
        return Verdict(Level.SKIPPED, "the database has no tables")
    if not missing:
        return ok("all are there")
    names = ", ".join(missing)
    remedy = (
        f"create {'it' if len(missing) == 1 else 'them'} again as in dispatcher/store/schema.py"
    )
    unique = [name for name in missing if name.startswith("uq_") and name.endswith(_UNIQUE)]
    if unique:
        return error(
            f"missing: {names}. Without {unique[0]} one idempotency key may give several messages",
            remedy,
            stops_worker=True,
        )
    return warning(f"missing: {names}. The sweep reads the whole table instead", remedy)


@check("store.durability")
def durability(facts: StoreFacts) -> Verdict:
    """Check that committed messages survive a power failure."""
    found, unsafe, remedy = facts.durability
    if not unsafe:
        return ok(", ".join(f"{name} {value}" for name, value in found.items()))
    wrong = ", ".join(f"{name} is {found[name]}" for name in unsafe)
    return warning(
        f"{wrong}: messages that were accepted can be lost when the machine dies", remedy
    )


@check("store.writes")
def writes(refusal: str | None) -> Verdict:
    """Check that a row can be stored."""
    if refusal is None:
        return ok("a row was stored, and taken back")
    return error(
        f"a row cannot be stored: {refusal}. Every submit fails",
        "free space on the database's disk, and let the user of database_url write; see the log of "
        "the server",
    )


CHECKS: tuple[Check[StoreFacts], ...] = (migrations, indexes, durability)
