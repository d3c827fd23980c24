"""messages and attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.columns import MYSQL, id_type, json_type, table_options
from dispatcher.store.instants import Instant

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    dialect = op.get_context().dialect
    has_partial_indexes = dialect.name not in MYSQL
    options = table_options(dialect)
    op.create_table(
        "messages",
        sa.Column("id", id_type(), nullable=False),
        sa.Column("channel", sa.String(length=63), nullable=False),
        sa.Column("recipient", sa.String(length=255), nullable=False),
        sa.Column("scope", sa.String(length=255), nullable=False),
        sa.Column("body", json_type(), nullable=False),
        sa.Column("send_at", Instant(), nullable=False),
        sa.Column("next_attempt_at", Instant(), nullable=False),
        sa.Column("enqueue_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=True),
        sa.Column("status", sa.String(length=9), nullable=False),
        sa.Column("attempt_count", sa.SmallInteger(), nullable=False),
        sa.Column("max_attempts", sa.SmallInteger(), nullable=False),
        sa.Column("claim_token", sa.Integer(), nullable=False),
        sa.Column("claimed_by", id_type(), nullable=True),
        sa.Column("claim_expires_at", Instant(), nullable=True),
        sa.Column("reserved", sa.Boolean(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("finished_at", Instant(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(status = 'sending') = (claim_expires_at IS NOT NULL AND claimed_by IS NOT NULL)",
            name=op.f("ck_messages_sending_has_claim"),
        ),
        sa.CheckConstraint(
            "(status IN ('scheduled', 'sending')) = (finished_at IS NULL)",
            name=op.f("ck_messages_final_has_end"),
        ),
        sa.CheckConstraint(
            "status IN ('scheduled', 'sending', 'sent', 'failed', 'expired', 'cancelled')",
            name=op.f("ck_messages_status_known"),
        ),
        sa.CheckConstraint(
            "attempt_count >= 0 AND max_attempts >= 1", name=op.f("ck_messages_attempts_counted")
        ),
        sa.CheckConstraint(
            "expires_at IS NULL OR expires_at > send_at",
            name=op.f("ck_messages_expires_after_send"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_messages_idempotency_key")),
        **options,
    )
    op.create_index(
        "ix_messages_claim_expires_at",
        "messages",
        ["claim_expires_at"] if has_partial_indexes else ["status", "claim_expires_at"],
        unique=False,
        postgresql_where=sa.text("status = 'sending'"),
        sqlite_where=sa.text("status = 'sending'"),
    )
    op.create_index(
        "ix_messages_enqueue_at",
        "messages",
        ["enqueue_at"] if has_partial_indexes else ["status", "enqueue_at"],
        unique=False,
        postgresql_where=sa.text("status = 'scheduled'"),
        sqlite_where=sa.text("status = 'scheduled'"),
    )
    op.create_index(
        "ix_messages_finished_at",
        "messages",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL"),
        sqlite_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index("ix_messages_recipient", "messages", ["recipient"], unique=False)
    op.create_index(
        "ix_messages_unreleased",
        "messages",
        ["id"] if has_partial_indexes else ["reserved", "status"],
        unique=False,
        postgresql_where=sa.text("reserved AND status IN ('cancelled', 'expired')"),
        sqlite_where=sa.text("reserved AND status IN ('cancelled', 'expired')"),
    )

    op.create_table(
        "attempts",
        sa.Column("message_id", id_type(), nullable=False),
        sa.Column("token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("finished_at", Instant(), nullable=True),
        sa.Column("outcome", sa.String(length=9), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('sent', 'temporary', 'permanent', 'unknown')",
            name=op.f("ck_attempts_outcome_known"),
        ),
        sa.CheckConstraint(
            "(outcome IS NULL) = (finished_at IS NULL)", name=op.f("ck_attempts_outcome_has_end")
        ),
        sa.ForeignKeyConstraint(
            ["message_id"],
            ["messages.id"],
            name=op.f("fk_attempts_message_id_messages"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("message_id", "token", name=op.f("pk_attempts")),
        **options,
    )
    op.create_index("ix_attempts_finished_at", "attempts", ["finished_at"])


def downgrade() -> None:
    op.drop_table("attempts")
    op.drop_table("messages")
