"""Who is told what becomes of a message, and what was told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

from dispatcher.store.columns import MYSQL

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TOLD_KNOWN = conv("ck_messages_told_known")
_UNTOLD = sa.text("told <> status AND status IN ('sent', 'failed', 'expired', 'cancelled', 'held')")


def upgrade() -> None:
    with op.batch_alter_table("messages") as table:
        table.add_column(sa.Column("status_url", sa.String(length=255), nullable=True))
        table.add_column(sa.Column("told", sa.String(length=9), nullable=True))
        table.create_check_constraint(
            _TOLD_KNOWN,
            "(told IS NULL) = (status_url IS NULL) AND (told IS NULL OR told IN "
            "('scheduled', 'sent', 'failed', 'expired', 'cancelled', 'held'))",
        )
    if op.get_context().dialect.name in MYSQL:  # they have no partial indexes
        op.drop_index("ix_messages_unreleased", "messages")
        op.create_index("ix_messages_unreleased", "messages", ["status", "reserved", "told"])
        return
    op.create_index(
        "ix_messages_untold",
        "messages",
        ["told", "status", "id"],
        unique=False,
        postgresql_where=_UNTOLD,
        sqlite_where=_UNTOLD,
    )


def downgrade() -> None:
    if op.get_context().dialect.name in MYSQL:
        op.drop_index("ix_messages_unreleased", "messages")
        op.create_index("ix_messages_unreleased", "messages", ["reserved", "status"])
    else:
        op.drop_index("ix_messages_untold", "messages")
    with op.batch_alter_table("messages") as table:
        table.drop_constraint(_TOLD_KNOWN, type_="check")
        table.drop_column("told")
        table.drop_column("status_url")
