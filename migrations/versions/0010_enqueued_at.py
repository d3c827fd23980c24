"""When Celery was given a message last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.instants import Instant

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("enqueued_at", Instant(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("messages") as table:
        table.drop_column("enqueued_at")
