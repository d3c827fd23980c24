"""``doctor`` on a PostgreSQL whose disk is full: a disk of its own, which only root can mount."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from dispatcher import StoreUnavailable
from dispatcher.times.clock import SystemClock
from tests.support.environment import child_environment
from tests.support.examining import ERROR, OK, examined, note_at_work
from tests.support.house import House, house_on
from tests.support.servers import PostgresServer, RedisServer

_SIZE = "size=32m,mode=0700"


@pytest.fixture
def disk(postgres: PostgresServer) -> Iterator[Path]:
    """Give a small disk of PostgreSQL's, as the tablespace ``small``; or skip."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    folder = postgres.folder / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", _SIZE, "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        folder.rmdir()
        reason = f"no disk can be mounted: {mounted.stderr.decode().strip()}"
        if "disk" in os.environ.get("DISPATCHER_TESTS_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        shutil.chown(folder, "nobody")
        postgres.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        yield folder
    finally:
        with suppress(Exception):  # it is not there when the server has failed
            postgres.execute("DROP TABLESPACE small")
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


@pytest.fixture
def house(
    postgres: PostgresServer, postgres_template: str, disk: Path, redis_server: RedisServer
) -> Iterator[House]:
    """Give a house whose database lies on that disk."""
    postgres.execute(f'CREATE DATABASE small TEMPLATE "{postgres_template}" TABLESPACE small')
    try:
        with house_on(redis_server, postgres.url("small"), clock=SystemClock()) as built:
            yield built
    finally:
        postgres.drop_database("small")


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no byte on the disk, also where PostgreSQL gives some back meanwhile."""
    filler = disk / "filler"
    is_full, is_over = Event(), Event()

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            while not is_over.is_set():
                try:
                    file.write(bytes(4_096))
                except OSError:
                    is_full.set()
                    is_over.wait(0.01)

    thread = Thread(target=fill)
    thread.start()
    try:
        assert is_full.wait(60)
        yield
    finally:
        is_over.set()
        thread.join()
        filler.unlink()


def test_a_full_disk_is_an_error_and_says_so(house: House, disk: Path) -> None:
    note_at_work(house)
    with filled(disk):
        with pytest.raises(StoreUnavailable, match="no space is left"):
            house.submit()
        found = examined(house)["store.writes"]
        command = subprocess.run(
            [sys.executable, "-m", "dispatcher", "doctor"],
            cwd=disk.parent, env=child_environment() | house.settings.environment(),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert found.level is ERROR
    assert found.found == (
        "a row cannot be stored: the database answered 53100: no space is left. Every submit fails"
    )
    assert command.returncode == 1
    # PostgreSQL ends a new connection that has to write its cache of the catalog anew.
    errors = "error +store.(writes +a row cannot be stored|answers +the database at)"
    is_told = re.search(errors, command.stdout)
    assert is_told, command.stdout
    assert examined(house)["store.writes"].level is OK
