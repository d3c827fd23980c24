"""Rows that are no messages: they keep an id whose place was given back from being stored."""

from __future__ import annotations

from alembic import op
from sqlalchemy.schema import conv

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_STATUS_KNOWN = conv("ck_messages_status_known")
_STATUSES = "'scheduled', 'sending', 'sent', 'failed', 'expired', 'cancelled', 'held'"


def upgrade() -> None:
    _allow(f"{_STATUSES}, 'void'")


def downgrade() -> None:
    op.execute("DELETE FROM messages WHERE status = 'void'")
    _allow(_STATUSES)


def _allow(statuses: str) -> None:
    with op.batch_alter_table("messages") as table:
        table.drop_constraint(_STATUS_KNOWN, type_="check")
        table.create_check_constraint(_STATUS_KNOWN, f"status IN ({statuses})")
