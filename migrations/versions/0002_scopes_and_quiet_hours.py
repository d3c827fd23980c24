"""What a message's time is judged by: further scopes, its zone, its quiet hours."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.columns import json_type

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("scopes", json_type(none_as_null=True), nullable=True))
    op.add_column("messages", sa.Column("zone", sa.String(length=63), nullable=True))
    op.add_column("messages", sa.Column("quiet_hours", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("messages") as table:
        for column in ("quiet_hours", "zone", "scopes"):
            table.drop_column(column)
