"""The command line on real servers, called in this process or as one of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dispatcher import cli
from dispatcher.cli import output
from dispatcher.times.clock import SystemClock
from tests.support.house import House, house_on
from tests.support.servers import RedisServer


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def is_refused(self, code: int, *says: str) -> None:
        """Check that it ended with this code, and said why in one sentence."""
        assert (self.code, self.out) == (code, "")
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        for words in says:
            assert words in self.err
        assert "Traceback" not in self.err

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


def house_with(**settings: Any) -> pytest.MarkDecorator:
    """Mark a test whose house has these settings."""
    return pytest.mark.parametrize("settings", [settings], ids=[""])


@pytest.fixture(scope="package", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Let all commands that tests run be of one group, as those of a program are."""
    cli.every_command()  # imports their modules
    app = import_module("dispatcher.cli.app")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "get_group", cache(vars(app)["get_group"]))
        yield


@pytest.fixture
def settings() -> dict[str, Any]:
    """Give the settings of the house other than the usual ones; tests replace it by a parameter."""
    return {}


@pytest.fixture
def house(
    redis_server: RedisServer,
    sqlite_url: str,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    """Give a house on SQLite with the machine's clock; the environment leads commands to it."""
    monkeypatch.chdir(tmp_path)
    own = {"data_dir": tmp_path / "data"} | settings
    with house_on(redis_server, sqlite_url, clock=SystemClock(), **own) as house:
        for name, value in house.settings.environment().items():
            monkeypatch.setenv(name, value)
        yield house


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, columns: int = 200) -> Ran:
        monkeypatch.setattr(sys, "argv", ["dispatcher", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(output.out, "_width", columns)  # COLUMNS may be read at import
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 1 if code else 0, shown.out, shown.err)

    return call
