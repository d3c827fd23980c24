"""The time that was asked for, where a message got another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.instants import Instant

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("asked_at", Instant(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("messages") as table:
        table.drop_column("asked_at")
