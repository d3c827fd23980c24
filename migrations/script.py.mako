<%!
    import re

    def of_the_settings(text):
        """Take the prefix of names and the schema from the settings; the default ones were seen."""
        named = re.sub(r"'(\w*?)dispatcher_(\w+)'", r"f'\1{tables.prefix}\2'", text)
        named = named.replace("schema=None", "schema=tables.schema")
        return named.replace("dispatcher.store.engines.types.", "types.")
%>"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dispatcher.store.engines import types
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    tables = op.get_context().opts["tables"]  # their names are those of the settings
    ${of_the_settings(upgrades) if upgrades else "pass"}
