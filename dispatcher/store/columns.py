"""Column types that mean the same on every database: ids, and JSON as it was given."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Dialect, Uuid
from sqlalchemy.dialects.mysql import BINARY, LONGTEXT
from sqlalchemy.types import TypeDecorator

from dispatcher.message import dump_json

MYSQL = ("mysql", "mariadb")
"""What SQLAlchemy calls MariaDB and MySQL, by the URL; either may be behind either name."""


class _Bytes(TypeDecorator[UUID]):
    """A UUID as its 16 bytes, which sort by time as the UUID does.

    Half as long as text in every index, and the same on MySQL, which has no UUID type.
    """

    impl = BINARY(16)
    cache_ok = True

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> bytes | None:
        """Turn a UUID into what the driver takes."""
        del dialect
        return None if value is None else value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        """Turn what the driver gives into a UUID."""
        del dialect
        return None if value is None else UUID(bytes=bytes(value))


class _Text(TypeDecorator[Any]):
    """JSON as text: MySQL's own type reorders keys and rounds long numbers. None is NULL."""

    impl = LONGTEXT
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Turn a value into JSON."""
        del dialect
        return None if value is None else dump_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Turn JSON into a value."""
        del dialect
        return None if value is None else json.loads(value)


def id_type() -> Uuid[UUID]:
    """Return the type of ids."""
    return Uuid().with_variant(_Bytes(), *MYSQL)


def json_type(*, none_as_null: bool = False) -> JSON:
    """Return the type of bodies and other JSON."""
    return JSON(none_as_null=none_as_null).with_variant(_Text(), *MYSQL)


def table_options(dialect: Dialect) -> dict[str, Any]:
    """Return what a migration says of a new table on this database.

    Text is compared by its bytes: neither case nor accents nor trailing spaces are alike.
    """
    if dialect.name not in MYSQL:
        return {}
    is_mariadb = getattr(dialect, "is_mariadb", False)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    return {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": collation}
