"""Who has opted out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.columns import table_options
from dispatcher.store.instants import Instant

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "suppressions",
        sa.Column("recipient", sa.String(length=255), nullable=False),
        sa.Column("channel", sa.String(length=63), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("recipient", "channel", name=op.f("pk_suppressions")),
        **table_options(op.get_context().dialect),
    )


def downgrade() -> None:
    op.drop_table("suppressions")
