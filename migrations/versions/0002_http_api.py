"""The tables of the HTTP API and the page, and of pauses.

Those of keys, of sessions of the page, and of answers that repeated calls get again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.engines.types import Instant, id_type, json_type, long_text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = op.get_context().opts["tables"]
    engine = op.get_context().opts["engine"]
    keys, replies = f"{tables.prefix}api_keys", f"{tables.prefix}api_replies"
    sessions, pauses = f"{tables.prefix}sessions", f"{tables.prefix}pauses"
    made = engine.table_options() | {"schema": tables.schema}
    op.create_table(
        keys,
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
            name=op.f(f"ck_{keys}_scope_is_whole"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{keys}")),
        sa.UniqueConstraint("name", "follows", name=op.f(f"uq_{keys}_name_follows")),
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
        replies,
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("seen", sa.String(length=64), nullable=True),
        sa.Column("message_id", id_type(), nullable=True),
        sa.Column("status", sa.SmallInteger(), nullable=True),
        sa.Column("headers", json_type(none_as_null=True), nullable=True),
        sa.Column("body", long_text(), nullable=True),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("keep_until", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{replies}")),
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
    op.create_index(f"ix_{replies}_keep_until", replies, ["keep_until"], schema=tables.schema)


def downgrade() -> None:
    tables = op.get_context().opts["tables"]
    for name in ("pauses", "api_replies", "sessions", "api_keys"):
        op.drop_table(f"{tables.prefix}{name}", schema=tables.schema)
