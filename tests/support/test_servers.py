"""The servers of the tests start from a clone that only its owner can read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.servers import PostgresServer, postgres_folder


@pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL changes its user only as root")
@pytest.mark.long
def test_postgresql_starts_where_only_root_can_enter(tmp_path: Path) -> None:
    installed = postgres_folder()
    package = installed.parent
    closed = tmp_path / "closed"
    shutil.copytree(installed, closed / package.name / installed.name)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, closed / libraries.name)
    for path in (closed, *closed.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    with PostgresServer(closed / package.name / installed.name) as server:
        server.execute("SELECT 1")
