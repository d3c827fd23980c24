"""The tables of messages, opt-outs and pauses, and those of the HTTP API and the page."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.engines import partitions
from dispatcher.store.engines.types import (
    BUSY_TABLE_OPTIONS,
    TABLE_OPTIONS,
    Instant,
    id_type,
    json_type,
    partial,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_WHERE = {
    "campaign": "campaign IS NOT NULL",
    "claim_expires_at": "status = 'sending'",
    "enqueue_at": "status = 'scheduled'",
    "finished_at": "finished_at IS NOT NULL",
    "unreleased": "reserved AND status IN ('cancelled', 'expired', 'void')",
    "held": "status = 'held'",
    "void": "status = 'void'",
    "notification_due": (
        "notified_status <> status AND status IN ('sent', 'failed', 'expired', 'cancelled', 'held')"
    ),
    "unsent": "status IN ('failed', 'expired', 'cancelled')",
}  # fmt: skip


def upgrade() -> None:
    tables = op.get_context().opts["tables"]
    engine = op.get_context().opts["engine"]
    messages, attempts = f"{tables.prefix}messages", f"{tables.prefix}attempts"
    keys, suppressions = f"{tables.prefix}idempotency_keys", f"{tables.prefix}suppressions"
    api_keys, sessions = f"{tables.prefix}api_keys", f"{tables.prefix}sessions"
    pauses = f"{tables.prefix}pauses"
    made = TABLE_OPTIONS | {"schema": tables.schema}
    busy = BUSY_TABLE_OPTIONS | {"schema": tables.schema}
    # Each partition has a primary key of its own; a table of partitions can have none.
    no_key = is_partitioned = isinstance(engine, partitions.PartitionedEngine)

    def key(table: str, *columns: str) -> list[sa.PrimaryKeyConstraint]:
        name = op.f(f"pk_{table}")
        return [] if no_key else [sa.PrimaryKeyConstraint(*columns, name=name)]

    def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
        return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))

    def index(name: str, *columns: str) -> None:
        op.create_index(
            f"ix_{messages}_{name}",
            messages,
            columns,
            schema=tables.schema,
            **partial(_WHERE[name]),
        )

    op.create_table(
        messages,
        sa.Column("id", id_type(), nullable=False),
        sa.Column("channel", sa.String(length=63), nullable=False),
        sa.Column("recipient", sa.String(length=2048), nullable=False),
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
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("finished_at", Instant(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("scopes", json_type(none_as_null=True), nullable=True),
        sa.Column("zone", sa.String(length=63), nullable=True),
        sa.Column("quiet_hours", sa.Text(), nullable=True),
        sa.Column("on_unknown", sa.String(length=5), server_default="retry", nullable=False),
        sa.Column("expire_after", sa.BigInteger(), nullable=True),
        sa.Column("asked_at", Instant(), nullable=True),
        sa.Column("move_token", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tail", sa.String(8), server_default="", nullable=False),
        sa.Column("status_url", sa.String(length=2048), nullable=True),
        sa.Column("notified_status", sa.String(length=9), nullable=True),
        sa.Column("trace", sa.String(length=55), nullable=True),
        sa.Column("enqueued_at", Instant(), nullable=True),
        sa.Column("campaign", sa.String(length=64), nullable=True),
        check(
            messages,
            "status_known",
            "status IN ('scheduled', 'sending', 'sent', 'failed', 'expired', 'cancelled', 'held', "
            "'void')",
        ),
        check(messages, "attempts_counted", "attempt_count >= 0 AND max_attempts >= 1"),
        check(
            messages,
            "sending_has_claim",
            "(status = 'sending') = (claim_expires_at IS NOT NULL AND claimed_by IS NOT NULL)",
        ),
        check(
            messages,
            "final_has_end",
            "(status IN ('scheduled', 'sending', 'held', 'void')) = (finished_at IS NULL)",
        ),
        check(messages, "expires_after_send", "expires_at IS NULL OR expires_at > send_at"),
        check(messages, "on_unknown_known", "on_unknown IN ('retry', 'hold')"),
        check(
            messages,
            "expire_after_has_expiry",
            "expire_after IS NULL OR (expire_after > 0 AND expires_at IS NOT NULL)",
        ),
        check(
            messages,
            "notified_status_known",
            "(notified_status IS NULL) = (status_url IS NULL) AND "
            "(notified_status IS NULL OR notified_status IN "
            "('scheduled', 'sent', 'failed', 'expired', 'cancelled', 'held'))",
        ),
        *key(messages, "id"),
        **busy,
    )
    op.create_index(
        f"ix_{messages}_recipient",
        messages,
        ["recipient"],
        schema=tables.schema,
        mysql_length=255,
        mariadb_length=255,
    )
    index("finished_at", "finished_at")
    index("campaign", "campaign", "id")
    if engine.has_partial_indexes:
        index("claim_expires_at", "claim_expires_at")
        index("enqueue_at", "enqueue_at")
        index("unreleased", "id")
        index("held", "id")
        index("void", "next_attempt_at")
        index("notification_due", "notified_status", "status", "id")
        index("unsent", "status", "id")
    else:
        index("claim_expires_at", "status", "claim_expires_at")
        index("enqueue_at", "status", "enqueue_at")
        index("unreleased", "status", "reserved", "notified_status")

    op.create_table(
        attempts,
        sa.Column("message_id", id_type(), nullable=False),
        sa.Column("token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("finished_at", Instant(), nullable=True),
        sa.Column("outcome", sa.String(length=9), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        check(
            attempts,
            "outcome_known",
            "outcome IN ('sent', 'temporary', 'permanent', 'unknown')",
        ),
        check(attempts, "outcome_has_end", "(outcome IS NULL) = (finished_at IS NULL)"),
        *key(attempts, "message_id", "token"),
        **busy,
    )
    op.create_index(f"ix_{attempts}_finished_at", attempts, ["finished_at"], schema=tables.schema)
    if is_partitioned:
        partitions.make(op.get_bind(), tables)

    op.create_table(
        keys,
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("message_id", id_type(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("idempotency_key", name=op.f(f"pk_{keys}")),
        **made,
    )

    op.create_table(
        suppressions,
        sa.Column("recipient", sa.String(length=255), nullable=False),
        sa.Column("channel", sa.String(length=63), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("recipient", "channel", name=op.f(f"pk_{suppressions}")),
        **made,
    )

    op.create_table(
        api_keys,
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("secret_digest", sa.String(length=64), nullable=False),
        sa.Column("rights", json_type(), nullable=False),
        sa.Column("channels", json_type(none_as_null=True), nullable=True),
        sa.Column("scope_kind", sa.String(length=63), nullable=True),
        sa.Column("scope_name", sa.String(length=255), nullable=True),
        sa.Column("rate", sa.String(length=100), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=True),
        sa.Column("revoked_at", Instant(), nullable=True),
        sa.Column("last_used_at", Instant(), nullable=True),
        sa.Column("follows", sa.String(length=12), nullable=False),
        sa.CheckConstraint(
            "(scope_kind IS NULL) = (scope_name IS NULL)",
            name=op.f(f"ck_{api_keys}_scope_is_whole"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{api_keys}")),
        sa.UniqueConstraint("name", "follows", name=op.f(f"uq_{api_keys}_name_follows")),
        **made,
    )
    op.create_table(
        sessions,
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=12), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{sessions}")),
        **made,
    )
    op.create_table(
        pauses,
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("paused_at", Instant(), nullable=False),
        sa.Column("resumed_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f(f"pk_{pauses}")),
        **made,
    )
