"""The wheel holds all that is needed, the migrations included."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dispatcher.web import api
from dispatcher.web.keys import ApiKeys
from tests.support.environment import ROOT
from tests.support.house import House
from tests.support.processes import ran


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with what the wheel holds, as an installer unpacks it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.long
def test_a_database_is_migrated_by_what_the_wheel_holds(unpacked: Path, tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
    env |= {
        "PYTHONPATH": str(unpacked),
        "DISPATCHER_DATABASE_URL": f"sqlite:///{database}",
        "DISPATCHER_DATA_DIR": str(tmp_path / "data"),
    }

    def run(*arguments: str) -> str:
        done = ran(sys.executable, *arguments, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import importlib.util as u; print(u.find_spec('dispatcher').origin)")
    assert Path(where.strip()).is_relative_to(unpacked)

    for _ in range(2):
        said = run("-m", "dispatcher", "migrate")
    [(revision,)] = sqlite3.connect(database).execute(
        "SELECT version_num FROM dispatcher_alembic_version"
    )
    assert f"at revision {revision}" in said
    newest = max(path.name for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    assert newest.startswith(revision)
    sqlite3.connect(database).execute("SELECT id, send_at FROM dispatcher_messages")
    shipped = {path.name for path in (unpacked / "dispatcher" / "migrations").rglob("*.py")}
    assert {path.name for path in (ROOT / "migrations").rglob("*.py")} <= shipped


def test_scripts_and_type_marks_are_in_the_wheel(unpacked: Path) -> None:
    package = ROOT / "dispatcher"
    data = [
        path.relative_to(package)
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert any(path.suffix == ".lua" for path in data)
    assert [path for path in data if not (unpacked / "dispatcher" / path).is_file()] == []


def test_the_wheel_has_the_openapi_document_that_the_api_serves(
    unpacked: Path, house: House
) -> None:
    _, token = ApiKeys(house.parts.database).add("shop")
    caller = TestClient(api(house.dispatcher), headers={"Authorization": f"Bearer {token}"})
    served = caller.get("/v1/openapi.json").json()
    assert json.loads((unpacked / "dispatcher" / "web" / "openapi.json").read_text()) == served
