"""A database behind a line that a test can break."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.mariadb import MariaDBServer
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer


@dataclass(frozen=True)
class FarDatabase:
    server: PostgresServer | MariaDBServer
    name: str
    proxy: Proxy

    @property
    def direct(self) -> str:
        return self.server.url(self.name)

    @property
    def through(self) -> str:
        return self.server.url(self.name, port=self.proxy.port)

    def end_connections(self) -> None:
        self.server.end_connections(self.name)
