"""Events that messages follow, the event and the wished time of each message."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.engines.types import TABLE_OPTIONS, Instant, json_type, partial

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = op.get_context().opts["tables"]
    messages, events = f"{tables.prefix}messages", f"{tables.prefix}events"
    made = TABLE_OPTIONS | {"schema": tables.schema}
    # On MariaDB each statement commits: what an earlier try has made is there.
    inspector = sa.inspect(op.get_bind())
    present = {column["name"] for column in inspector.get_columns(messages, schema=tables.schema)}
    for column in (
        sa.Column("event", sa.String(length=128), nullable=True),
        sa.Column("wish", sa.String(length=64), nullable=True),
    ):
        if column.name not in present:
            op.add_column(messages, column, schema=tables.schema)
    indexes = {index["name"] for index in inspector.get_indexes(messages, schema=tables.schema)}
    if f"ix_{messages}_event" not in indexes:
        op.create_index(
            f"ix_{messages}_event",
            messages,
            ["event", "id"],
            schema=tables.schema,
            **partial("event IS NOT NULL"),
        )
    if not inspector.has_table(events, schema=tables.schema):
        op.create_table(
            events,
            sa.Column("name", sa.String(length=128), nullable=False),
            sa.Column("token", sa.String(length=12), nullable=False),
            sa.Column("at", Instant(), nullable=True),
            sa.Column("wish", sa.String(length=64), nullable=True),
            sa.Column("zone", sa.String(length=63), nullable=True),
            sa.Column("cancelled_at", Instant(), nullable=True),
            sa.Column("definition", json_type(none_as_null=True), nullable=True),
            sa.Column("booked_until", Instant(), nullable=True),
            sa.Column("due_at", Instant(), nullable=True, index=True),
            sa.PrimaryKeyConstraint("name", name=op.f(f"pk_{events}")),
            **made,
        )
