"""A priority and what delays it for each message; quotas and limits of single scopes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.engines.types import TABLE_OPTIONS, Instant, json_type

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = op.get_context().opts["tables"]
    messages, scope_settings = f"{tables.prefix}messages", f"{tables.prefix}scope_settings"
    made = TABLE_OPTIONS | {"schema": tables.schema}
    # On MariaDB each statement commits: what an earlier try has made is there.
    inspector = sa.inspect(op.get_bind())
    present = {column["name"] for column in inspector.get_columns(messages, schema=tables.schema)}
    for column in (
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("delayed_by", sa.String(length=255), nullable=True),
    ):
        if column.name not in present:
            op.add_column(messages, column, schema=tables.schema)
    if not inspector.has_table(scope_settings, schema=tables.schema):
        op.create_table(
            scope_settings,
            sa.Column("kind", sa.String(length=63), nullable=False),
            sa.Column("name", sa.String(length=255), nullable=False),
            sa.Column("quotas", json_type(none_as_null=True), nullable=True),
            sa.Column("limits", json_type(none_as_null=True), nullable=True),
            sa.Column("changed_at", Instant(), nullable=False, index=True),
            sa.PrimaryKeyConstraint("kind", "name", name=op.f(f"pk_{scope_settings}")),
            **made,
        )
