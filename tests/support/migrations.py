"""A version to come: the migrations of this one, and another after them."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

NEXT = "0002"
_NEXT = f'''
import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

revision, down_revision, branch_labels, depends_on = "{NEXT}", "0001", None, None


def upgrade():
    tables = op.get_context().opts["tables"]
    messages = f"{{tables.prefix}}messages"
    known = conv(f"ck_{{messages}}_status_known")
    with op.batch_alter_table(messages, schema=tables.schema) as table:
        table.add_column(sa.Column("note", sa.String(9), nullable=True))
        table.drop_constraint(known, type_="check")
        table.create_check_constraint(known, "status <> 'lost'")
    op.execute(sa.update(sa.table(messages, sa.column("note"), schema=tables.schema))
               .values(note="old"))
    op.create_index(f"ix_{{messages}}_note", messages, ["note"], schema=tables.schema)


def downgrade():
    tables = op.get_context().opts["tables"]
    messages = f"{{tables.prefix}}messages"
    op.drop_index(f"ix_{{messages}}_note", messages, schema=tables.schema)
    with op.batch_alter_table(messages, schema=tables.schema) as table:
        table.drop_column("note")
'''


def become_next_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have one more migration: a column, a constraint, rows, an index."""
    migrate = import_module("dispatcher.store.migrate")  # the package has a function of that name
    shutil.copytree(migrate._LOCATIONS[-1], folder / "migrations")
    (folder / "migrations" / "versions" / f"{NEXT}_next.py").write_text(_NEXT)
    monkeypatch.setattr(migrate, "_LOCATIONS", (folder / "migrations",))
