"""The campaign of a message, and its index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.engines.base import NewIndex
from dispatcher.store.engines.types import partial

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_WHERE = "campaign IS NOT NULL"


def upgrade() -> None:
    tables, engine = op.get_context().opts["tables"], op.get_context().opts["engine"]
    messages, connection = f"{tables.prefix}messages", op.get_bind()
    # A run that was interrupted while it built the index has added the column.
    if not _has_campaign(connection, messages, tables.schema):
        op.add_column(
            messages,
            sa.Column("campaign", sa.String(length=64), nullable=True),
            schema=tables.schema,
        )
    index = NewIndex(f"ix_{messages}_campaign", tables.messages, ["campaign", "id"], _WHERE)

    def create() -> None:
        op.create_index(
            index.name, messages, index.columns, schema=tables.schema, **partial(index.where)
        )

    engine.build_index(connection, index, create)


def _has_campaign(connection: sa.Connection, messages: str, schema: str | None) -> bool:
    columns = sa.inspect(connection).get_columns(messages, schema)
    return any(each["name"] == "campaign" for each in columns)


def downgrade() -> None:
    tables = op.get_context().opts["tables"]
    messages = f"{tables.prefix}messages"
    op.drop_index(f"ix_{messages}_campaign", messages, schema=tables.schema)
    op.drop_column(messages, "campaign", schema=tables.schema)
