"""A version to come: the migrations of this one, and another after them."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from dispatcher.store.database import Database
from dispatcher.store.migrate import options

_FOLDER = Path(__file__).parents[2] / "migrations"
REVISIONS = sorted(path.name[:4] for path in _FOLDER.glob("versions/*.py"))
HEAD = REVISIONS[-1]
NEXT = f"{int(HEAD) + 1:04}"
_NEXT = f'''
import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

revision, down_revision, branch_labels, depends_on = "{NEXT}", "{HEAD}", None, None


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
'''


def become_next_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have one more migration: a column, a constraint, rows, an index."""
    migrate = import_module("dispatcher.store.migrate")  # the package has a function of that name
    shutil.copytree(migrate._LOCATIONS[-1], folder / "migrations")
    (folder / "migrations" / "versions" / f"{NEXT}_next.py").write_text(_NEXT)
    monkeypatch.setattr(migrate, "_LOCATIONS", (folder / "migrations",))


def differences(database: Database) -> list[object]:
    """Return what the schema describes and the database has not, or the other way round."""

    def compared(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts=options(database.tables))
        return list(compare_metadata(context, database.tables.metadata))

    return database.run(compared)
