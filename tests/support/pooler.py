"""PgBouncer in transaction mode before a PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from urllib.parse import quote

import psycopg

from tests.support.requiring import missing
from tests.support.servers import PostgresServer, Server

_CONFIGURATION = """
[databases]
* = host={upstream} user=postgres
[pgbouncer]
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
"""


class Pooler(Server):
    """PgBouncer with its defaults: few sessions for all clients of a database."""

    def __init__(self, postgres: PostgresServer, *, size: int = 4) -> None:
        super().__init__("dispatcher-pooler-")
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        text = _CONFIGURATION.format(upstream=postgres.folder, folder=self.folder, size=size)
        (self.folder / "pgbouncer.ini").write_text(text)

    @staticmethod
    def program() -> str:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            missing("pgbouncer", "PgBouncer is missing: apt-get install pgbouncer")
        return program

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder))}&port=6432"

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        command = [self.program(), str(self.folder / "pgbouncer.ini")]
        return subprocess.Popen(
            command, user=self._user, stdout=log, stderr=log, start_new_session=True
        )

    def _answers(self) -> bool:
        self._check_alive()
        try:
            psycopg.connect(self.url("postgres"), autocommit=True).close()
        except psycopg.OperationalError:
            return False
        return True
