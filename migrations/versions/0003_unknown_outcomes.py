"""What is done after an unknown outcome, messages that are held, and lengths until expiry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

from dispatcher.store.columns import MYSQL

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_STATUS_KNOWN = conv("ck_messages_status_known")
_FINAL_HAS_END = conv("ck_messages_final_has_end")
_ON_UNKNOWN_KNOWN = conv("ck_messages_on_unknown_known")
_EXPIRE_AFTER = conv("ck_messages_expire_after_has_expiry")


def upgrade() -> None:
    with op.batch_alter_table("messages") as table:
        table.add_column(
            sa.Column("on_unknown", sa.String(length=5), server_default="retry", nullable=False)
        )
        table.add_column(sa.Column("expire_after", sa.BigInteger(), nullable=True))
        for name in (_STATUS_KNOWN, _FINAL_HAS_END):
            table.drop_constraint(name, type_="check")
        table.create_check_constraint(
            _STATUS_KNOWN,
            "status IN ('scheduled', 'sending', 'sent', 'failed', 'expired', 'cancelled', 'held')",
        )
        table.create_check_constraint(
            _FINAL_HAS_END,
            "(status IN ('scheduled', 'sending', 'held')) = (finished_at IS NULL)",
        )
        table.create_check_constraint(_ON_UNKNOWN_KNOWN, "on_unknown IN ('retry', 'hold')")
        table.create_check_constraint(
            _EXPIRE_AFTER,
            "expire_after IS NULL OR (expire_after > 0 AND expires_at IS NOT NULL)",
        )
    if op.get_context().dialect.name in MYSQL:
        return  # they have no partial indexes, and another index finds what is held
    op.create_index(
        "ix_messages_held",
        "messages",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status = 'held'"),
        sqlite_where=sa.text("status = 'held'"),
    )


def downgrade() -> None:
    op.execute("UPDATE messages SET status = 'failed', finished_at = next_attempt_at "
               "WHERE status = 'held'")  # fmt: skip
    if op.get_context().dialect.name not in MYSQL:
        op.drop_index("ix_messages_held", "messages")
    with op.batch_alter_table("messages") as table:
        for name in (_STATUS_KNOWN, _FINAL_HAS_END, _ON_UNKNOWN_KNOWN, _EXPIRE_AFTER):
            table.drop_constraint(name, type_="check")
        table.create_check_constraint(
            _STATUS_KNOWN,
            "status IN ('scheduled', 'sending', 'sent', 'failed', 'expired', 'cancelled')",
        )
        table.create_check_constraint(
            _FINAL_HAS_END, "(status IN ('scheduled', 'sending')) = (finished_at IS NULL)"
        )
        for column in ("expire_after", "on_unknown"):
            table.drop_column(column)
