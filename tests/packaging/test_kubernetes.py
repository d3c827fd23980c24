"""The manifests name settings, commands, paths and files that there are, and ask for few rights.

``make check`` compares them with the schema of Kubernetes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dispatcher import Settings
from dispatcher.cli import app as cli
from dispatcher.cli import every_command
from dispatcher.telemetry.liveness import PATIENCE
from dispatcher.transports import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PAGE = (ROOT / "docs" / "operating.md").read_text("utf-8")
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))
OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    (each["kind"], each["metadata"]["name"]): each
    for file in KUSTOMIZATION["resources"]
    for each in yaml.safe_load_all((FOLDER / file).read_text("utf-8"))
}
PODS: dict[str, dict[str, Any]] = {
    name: each["spec"]["template"]["spec"]
    for (_, name), each in OBJECTS.items()
    if "template" in each.get("spec", {})
}
CONTAINERS: dict[str, dict[str, Any]] = {
    name: pod["containers"][0] for name, pod in PODS.items() if len(pod["containers"]) == 1
}
SERVICES = ("dispatcher-worker", "dispatcher-beat")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def data(name: str) -> dict[str, str]:
    found: dict[str, str] = OBJECTS["ConfigMap", name]["data"]
    return found


def volumes(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod.get("volumes", [])}


def mounts(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each path of a container with its volume."""
    for each in CONTAINERS[name]["volumeMounts"]:
        yield each["mountPath"], volumes(PODS[name])[each["name"]]


def test_the_environment_is_made_of_settings() -> None:
    given = data("dispatcher-environment")
    assert all(name.startswith("DISPATCHER_") for name in given)
    values = {name.removeprefix("DISPATCHER_").lower(): each for name, each in given.items()}
    settings = Settings.load(**values)
    assert settings.model_fields_set >= values.keys()
    assert settings.metrics_host == "0.0.0.0", "a pod's address is not known before"  # noqa: S104


def test_the_settings_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [(name, text)] = data("dispatcher-settings").items()
    assert name == "dispatcher.toml"
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    settings = Settings.load()
    assert settings.model_fields_set == tomllib.loads(text).keys()
    for each, channel in settings.channels.items():
        load(each, channel, settings)


@pytest.mark.parametrize("name", CONTAINERS)
def test_secrets_and_settings_come_from_objects_that_there_are(name: str) -> None:
    sources = CONTAINERS[name]["envFrom"]
    assert sources == [
        {"configMapRef": {"name": "dispatcher-environment"}},
        {"secretRef": {"name": "dispatcher"}},
    ]
    [settings] = [each for path, each in mounts(name) if path == "/app/dispatcher.toml"]
    assert settings["configMap"]["name"] == "dispatcher-settings"
    assert "WORKDIR /app\n" in DOCKERFILE
    assert not any(kind == "Secret" for kind, _ in OBJECTS), "made by hand: it has passwords"


def test_the_secret_of_the_page_has_the_addresses_that_settings_need() -> None:
    names = re.findall(r"^ *DISPATCHER_(\w+)=", PAGE, re.MULTILINE)
    assert {each.lower() for each in names} == {"database_url", "redis_url", "broker_url"}
    assert set(re.findall(r"DISPATCHER_\w+_URL", (FOLDER / "config.yaml").read_text())) == {
        f"DISPATCHER_{each}" for each in names
    }


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pod_runs_a_command_of_the_image(name: str) -> None:
    assert 'ENTRYPOINT ["dispatcher"]' in DOCKERFILE
    command, *options = CONTAINERS[name]["args"]
    assert command == name.removeprefix("dispatcher-")
    asked = CliRunner().invoke(cli, [command, *options, "--help"])
    assert asked.exit_code == 0, asked.output
    known = {each for one in every_command().commands[command].params for each in one.opts}
    assert {each for each in options if each.startswith("-")} <= known
    assert CONTAINERS[name]["image"] in {each["name"] for each in KUSTOMIZATION["images"]}


@pytest.mark.parametrize("name", SERVICES)
def test_probes_ask_paths_and_a_port_that_answer(name: str) -> None:
    container = CONTAINERS[name]
    [port] = container["ports"]
    assert str(port["containerPort"]) == data("dispatcher-environment")["DISPATCHER_METRICS_PORT"]
    assert "metrics" in re.findall(r"\[([\w,]+)\]\"$", DOCKERFILE, re.MULTILINE)[0].split(",")
    for each in PROBES:
        asked = container[each]["httpGet"]
        assert asked["port"] == port["name"]
        assert asked["path"] == ("/readyz" if each == "readinessProbe" else "/livez")
        assert container[each]["timeoutSeconds"] > PATIENCE.total_seconds()


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pod_has_few_rights(name: str) -> None:
    pod, container = PODS[name], CONTAINERS[name]
    [user] = re.findall(r"--uid (\d+)", DOCKERFILE)
    rights = pod["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert {rights["runAsUser"], rights["fsGroup"]} == {int(user)}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert {"requests", "limits"} == container["resources"].keys()
    writable = {path for path, each in mounts(name) if "emptyDir" in each}
    assert writable == ({"/data", "/tmp"} if name == "dispatcher-worker" else {"/tmp"})  # noqa: S108
    assert "DISPATCHER_DATA_DIR=/data" in DOCKERFILE


def test_a_worker_has_the_time_that_it_needs_to_end() -> None:
    grace = PODS["dispatcher-worker"]["terminationGracePeriodSeconds"]
    needed = Settings.load().stop_grace.total_seconds()
    assert needed < grace <= 2 * needed


def test_the_manifests_run_one_beat_and_replace_workers_one_at_a_time() -> None:
    beat = OBJECTS["Deployment", "dispatcher-beat"]["spec"]
    assert (beat["replicas"], beat["strategy"]["type"]) == (1, "Recreate")
    worker = OBJECTS["Deployment", "dispatcher-worker"]["spec"]
    budget = OBJECTS["PodDisruptionBudget", "dispatcher-worker"]["spec"]
    assert budget["maxUnavailable"] < worker["replicas"]
    assert budget["selector"] == worker["selector"]
