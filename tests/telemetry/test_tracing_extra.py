"""Traces are an extra: refused where it is missing, not even loaded where they are off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dispatcher import InvalidSettings, Settings
from dispatcher.app import App
from tests.support.environment import child_environment


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dispatcher.telemetry.tracing.spans", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidSettings, match="needs opentelemetry-api") as caught:
        App(Settings.load(traces=True)).submitter  # noqa: B018 - it is built
    assert caught.value.field == "traces"
    assert caught.value.accepted.startswith("pip install 'dispatcher[traces]'")


def test_a_library_that_is_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dispatcher.telemetry.tracing.spans", raising=False)
    monkeypatch.setitem(sys.modules, "dispatcher.message", None)
    with pytest.raises(ModuleNotFoundError, match=r"dispatcher\.message"):
        App(Settings.load(traces=True)).tracing  # noqa: B018 - it is built


def test_where_traces_are_off_the_library_is_neither_needed_nor_asked_for() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None; "
        "from dispatcher import Settings; from dispatcher.app import App; "
        "parts = App(Settings.load()); parts.submitter, parts.batches, parts.delivery"
    )
    subprocess.run([sys.executable, "-c", program], env=child_environment(), check=True)
