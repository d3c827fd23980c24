"""The span that submitted a message."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("trace", sa.String(length=55), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("messages") as table:
        table.drop_column("trace")
