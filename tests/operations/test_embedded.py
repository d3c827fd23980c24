"""The embedded environment has the settings that it was given, whatever the folder has."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Dispatcher, InvalidSettings, Settings
from dispatcher.embedded import Process, _load, _service, _supervised, embedded, environment
from tests.support.environment import ROOT
from tests.support.processes import ran
from tests.support.waiting import wait_until

SMS: dict[str, Any] = {"sms": {"transport": "memory"}}
PROJECT = """
quotas = "3/day"
zone = "Europe/Berlin"
hooks = "no.such.module:Hooks"
status_channel = "status"

[channels.sms]
transport = "console"
quiet_hours = "00:00-23:59"
options = { nobody = "takes this" }

[channels.status]
transport = "webhook"
options = { payload = "body" }

[scopes.tenant]
quotas = "1/day"
"""
DEFAULTS = ("console", "file", "memory")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with settings of its own, without any in the environment."""
    for name in [variable for variable in os.environ if variable.startswith("DISPATCHER_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dispatcher.toml").write_text(PROJECT, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def test_embedded_reads_no_other_settings(tmp_path: Path) -> None:
    with embedded(tmp_path / "data", channels=SMS) as settings, Dispatcher(settings) as dispatcher:
        assert type(settings) is Settings
        assert set(settings.channels) == {"sms", *DEFAULTS}
        assert settings.channels["sms"].quiet_hours is None
        assert settings.channels["sms"].options == {}
        assert [str(quota) for quota in settings.quotas] == ["1/minute", "5/hour", "10/day"]
        assert (settings.zone, settings.hooks, settings.status_channel) == ("UTC", "", "")
        assert settings.scopes == {}
        message = dispatcher.submit(
            channel="sms", recipient="ada", body={"text": "x"}, send_in=timedelta(hours=1)
        )
        assert dispatcher.get(message.id) == message


def test_variables_say_what_is_not_given_and_no_part_of_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("ZONE", "Europe/Paris"), ("QUOTAS", "7/day"), ("CHANNELS__SMS__MAX_ATTEMPTS", "7"),
        ("CHANNELS__FAX__TRANSPORT", "memory"),
    ):  # fmt: skip
        monkeypatch.setenv(f"DISPATCHER_{name}", value)
    settings = _load(tmp_path, {"channels": SMS, "quotas": "2/day"})
    assert settings.zone == "Europe/Paris"
    assert [str(quota) for quota in settings.quotas] == ["2/day"]
    assert set(settings.channels) == {"sms", *DEFAULTS}
    assert settings.channels["sms"].max_attempts != 7
    monkeypatch.delenv("DISPATCHER_CHANNELS__SMS__MAX_ATTEMPTS")
    assert set(_load(tmp_path, {}).channels) == {"fax", *DEFAULTS}
    with pytest.raises(InvalidSettings) as refused:
        _load(tmp_path, {"channels": {"sms": {"transport": ""}}})
    assert refused.value.field.startswith("channels.sms")
    with pytest.raises(TypeError, match="brings its own"):
        _load(tmp_path, {"redis_url": "redis://elsewhere"})


def test_worker_and_beat_have_the_same(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_CHANNELS__SMS__QUIET_HOURS", "01:00-02:00")
    monkeypatch.setenv("DISPATCHER_METRICS_PORT", "9100")
    settings = _load(tmp_path, {"channels": SMS, "metrics_port": None})
    program = "import json, dispatcher; print(json.dumps(dispatcher.Settings.load().environment()))"
    env = (_service(settings, "worker").env or {}) | {"PYTHONPATH": str(ROOT)}
    child = ran(sys.executable, "-c", program, cwd=project, env=env, check=True)
    assert json.loads(child.stdout) == settings.environment()
    assert [path.name for path in project.iterdir()] == ["dispatcher.toml"]


@pytest.mark.parametrize("has_log", [True, False])
def test_an_ended_process_is_started_again_also_without_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_log: bool
) -> None:
    monkeypatch.setattr("dispatcher.embedded._RESTART_SECONDS", 0.01)
    log = tmp_path / "logs" / "short.log"
    process = Process([sys.executable, "-c", "print('done')"], log=log)
    process.start()
    wait_until(lambda: not process.alive)
    first, told = process._child, list[str]()
    if not has_log:
        log.unlink()

    def tell(text: str) -> None:
        told.append(text)
        raise SystemExit  # as rich does where the terminal is gone

    with _supervised([process], tell):
        wait_until(lambda: process._child is not first)
    process.stop()
    assert ("ends with: done" if has_log else "cannot be read") in told[0]


def test_a_channel_that_cannot_work_stops_an_environment_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transports are looked for where the worker does: also in the working directory."""
    (tmp_path / "carriers_of_a_test.py").write_text("def send(message): ...")
    monkeypatch.chdir(tmp_path)
    channels = {
        "here": {"transport": "carriers_of_a_test:send"},
        "nowhere": {"transport": "carriers_of_a_tset:send"},
    }
    with pytest.raises(InvalidSettings) as refused, environment(tmp_path / "x", channels=channels):
        pass
    assert refused.value.field == "channels.nowhere.transport"
    assert not (tmp_path / "x" / "redis").exists()
    assert not (tmp_path / "x" / "dispatcher.db").exists()


@pytest.mark.long
def test_files_of_embedded_are_private_whatever_the_umask(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def open_to_others() -> list[Path]:
        return [path for path in [data, *data.rglob("*")] if path.stat().st_mode & 0o077]

    before = os.umask(0)
    try:
        with environment(data, channels={"sms": {"transport": "file"}}) as settings:
            with Dispatcher(settings) as dispatcher:
                hour = timedelta(hours=1)
                wait_until(lambda: dispatcher.status(since=hour).workers, 30, every=0.2)
                dispatcher.submit(
                    channel="sms", recipient="ada", body={"text": "x"}, send_in=timedelta(0)
                )
                wait_until((data / "sent" / "sms.jsonl").exists)
            assert open_to_others() == []
        assert open_to_others() == []
        assert (data / "dispatcher.db").exists()
        assert list((data / "redis").rglob("*.aof*"))
    finally:
        os.umask(before)
