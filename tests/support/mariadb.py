"""The MariaDB that runs on this machine, and databases of a test run's own on it.

A guard process drops them even when the test run itself is killed: it waits on a pipe that closes
with the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self
from uuid import uuid4

import pymysql

from tests.support.requiring import missing
from tests.support.tables import NAMES, TABLES

_HOST, _, _PORT = os.environ.get("DISPATCHER_TESTS_MARIADB", "127.0.0.1:3306").rpartition(":")
ADDRESS = (_HOST, int(_PORT))
"""Where the tests look for it."""
_LOGIN: dict[str, Any] = {
    "host": ADDRESS[0], "port": ADDRESS[1], "user": "root", "autocommit": True,
    "ssl_disabled": True,
}  # fmt: skip
_GUARD = """
import json, sys, pymysql
login, prefix = json.loads(sys.argv[1]), sys.argv[2]
sys.stdin.read()
with pymysql.connect(**login) as connection, connection.cursor() as cursor:
    cursor.execute("SELECT schema_name FROM information_schema.schemata")
    for (name,) in cursor.fetchall():
        if name.startswith(prefix):
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
"""
_Rows = list[tuple[object, ...]]


class MariaDBServer:
    """A server that was there before, and that others may use meanwhile."""

    upstream = ADDRESS

    def __enter__(self) -> Self:
        try:
            pymysql.connect(**_LOGIN).close()
        except pymysql.Error as error:
            missing("mariadb", f"no MariaDB on {ADDRESS} for root without password ({error})")
        self._prefix = f"dispatcher_test_{uuid4().hex[:12]}_"
        self._databases = 0
        self._migrated: tuple[str, object] | None = None
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, json.dumps(_LOGIN), self._prefix],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.communicate(timeout=60)

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"mysql://root@{ADDRESS[0]}:{port or ADDRESS[1]}/{database}"

    def create_database(self) -> str:
        self._databases += 1
        name = f"{self._prefix}{self._databases}"
        self.execute(f"CREATE DATABASE `{name}`")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def execute(self, *statements: str, database: str | None = None) -> _Rows:
        """Run statements on a connection of its own; return the rows of the last."""
        answers = self._answers(*statements, database=database)
        return answers[-1] if answers else []

    def _answers(self, *statements: str, database: str | None = None) -> list[_Rows]:
        with (
            pymysql.connect(database=database, **_LOGIN) as connection,
            connection.cursor() as cursor,
        ):
            answers = []
            for statement in statements:
                cursor.execute(statement)
                answers.append(list(cursor.fetchall()))
            return answers

    def end_connections(self, name: str) -> None:
        connections = self.execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"  # noqa: S608 - a name of ours
        )
        self.execute(*(f"KILL {number}" for (number,) in connections))

    def migrated(self, migrate: Callable[[str], object]) -> str:
        """Return the name of a migrated database with nothing in it.

        It is the same one as long as its schema is what ``migrate``, given its URL, has made.
        """
        if self._migrated is not None:
            name, made = self._migrated
            if self._schema(name) == made:
                self._empty(name)
                return name
            self.drop_database(name)
        name = self.create_database()
        migrate(self.url(name))
        self._migrated = (name, self._schema(name))
        return name

    def _schema(self, name: str) -> object:
        """Return what tells whether a test has changed the tables; None where one is gone."""
        try:
            versions, *tables = self._answers(
                "SELECT * FROM dispatcher_alembic_version",
                *(f"SHOW CREATE TABLE {table}" for table in sorted(NAMES)),
                database=name,
            )
        except pymysql.Error:
            return None
        lines = (str(rows[0][1]).splitlines() for rows in tables)
        return versions, [sorted(line.strip(" ,") for line in table) for table in lines]

    def _empty(self, name: str) -> None:
        triggers, tables = self._answers("SHOW TRIGGERS", "SHOW TABLES", database=name)
        self.execute(
            *(f"DROP TRIGGER `{trigger[0]}`" for trigger in triggers),
            *(f"DROP TABLE `{table}`" for (table,) in tables if table not in NAMES),
            *(f"DELETE FROM {table}" for table in sorted(TABLES.metadata.tables)),  # noqa: S608
            database=name,
        )
