"""The Compose file and the image: no default password, few rights, exact versions."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from dispatcher import Settings
from dispatcher.embedded import redis_server
from dispatcher.operations import checks
from dispatcher.operations.checks import Level
from dispatcher.reservation.contents import RedisNode
from tests.support.nodes import free_port
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
FILE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
CLUSTER = {name: each for name, each in SERVICES.items() if each.get("profiles") == ["cluster"]}
NODES = {name: each for name, each in CLUSTER.items() if re.fullmatch(r"redis-\d", name)}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert not {"privileged", "cap_add", "ports"} & service.keys()


def test_nothing_starts_without_its_password() -> None:
    asked = re.findall(r"(?<!\$)\$\{(\w+)(.*?)\}", "\n".join(
        line for line in TEXT.splitlines() if not line.startswith("#")
    ))  # fmt: skip
    assert {name for name, _ in asked} == {
        f"{each}_PASSWORD" for each in ("POSTGRES", "REDIS", "BROKER")
    }
    assert all(otherwise.startswith(":?") for _, otherwise in asked)


def test_images_are_named_by_exact_versions() -> None:
    images = {each["image"] for each in SERVICES.values() if "build" not in each}
    images |= set(
        re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    )
    assert len(images) == 4
    for each in images:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?(-slim-[a-z]+)?", each), each


def test_the_doctor_knows_no_vulnerability_of_the_redis_servers() -> None:
    for service in SERVICES.values():
        name, _, version = service["image"].partition(":")
        if name == "redis":
            nodes = [RedisNode("", {"redis_version": version})]
            doctor: Any = SimpleNamespace(redis_nodes=lambda nodes=nodes: nodes)
            assert checks.redis_vulnerabilities(doctor).level is Level.OK, version


def test_worker_and_beat_of_the_cluster_have_settings_that_there_are() -> None:
    worker, beat = CLUSTER["cluster-worker"]["environment"], CLUSTER["cluster-beat"]["environment"]
    assert worker == beat
    fields = {name.removeprefix("DISPATCHER_").lower() for name in worker}
    assert fields <= Settings.model_fields.keys()
    assert worker["DISPATCHER_TABLE_SCHEMA"], "two Redis must not judge the messages of one store"
    scheme, _, rest = worker["DISPATCHER_REDIS_URL"].partition("://")
    hosts = rest.rpartition("@")[2].split(",")
    assert scheme == "redis+cluster"
    assert {each.removesuffix(":6379") for each in hosts} <= NODES.keys()
    broker = worker["DISPATCHER_BROKER_URL"]
    rabbitmq = CLUSTER["rabbitmq"]["environment"]
    assert broker.startswith(f"amqp://{rabbitmq['RABBITMQ_DEFAULT_USER']}:")
    assert broker.endswith(f"@rabbitmq:5672/{rabbitmq['RABBITMQ_DEFAULT_VHOST']}")
    assert Settings.load().queue_type == "quorum"


@pytest.mark.parametrize("name", ["worker", "beat", "cluster-worker", "cluster-beat"])
def test_a_health_check_asks_a_path_and_a_port_that_answer(name: str) -> None:
    given = {
        name.removeprefix("DISPATCHER_").lower(): each
        for name, each in SERVICES[name]["environment"].items()
    }
    assert given.keys() <= Settings.model_fields.keys()
    command, _, program = SERVICES[name]["healthcheck"]["test"][1:]
    assert command == "python"
    compile(program, name, "exec")
    asked = urlsplit(re.findall(r"http://[^\"]+", program)[0])
    assert asked.port == int(given["metrics_port"])
    assert asked.path == "/livez"
    assert "metrics" in (ROOT / "Dockerfile").read_text("utf-8")


@pytest.mark.long
def test_the_nodes_start_by_their_options_and_are_joined_once(tmp_path: Path) -> None:
    """The commands of the file, on this machine: with other ports, and without passwords."""
    command = shutil.which(
        "redis-cli", path=f"{Path(redis_server()).parent}:/usr/bin:/usr/local/bin"
    )
    if command is None:
        pytest.skip("no redis-cli found")
    options = [
        word
        for each in NODES["redis-1"]["command"][1:]
        if not each.startswith(("--requirepass", "--masterauth", "--cluster-config-file", "--save"))
        for word in each.split()
    ]
    assert {"--cluster-enabled", "--appendonly", "noeviction"} <= {*options}
    script = CLUSTER["redis-cluster"]["command"][2].replace("$$", "$")
    with ExitStack() as stack:
        ports = [free_port() for _ in NODES]
        nodes = [
            stack.enter_context(
                RedisServer("--port", str(port), "--bind", "127.0.0.1", *options)
            ).client()
            for port in ports
        ]
        env = {
            "PATH": f"{Path(command).parent}:/usr/bin:/bin",
            "NODES": " ".join(f"127.0.0.1:{each}" for each in ports),
        }
        for _ in range(2):  # the second time it finds them joined
            joining = ["sh", "-ec", script]
            subprocess.run(joining, check=True, env=env, cwd=tmp_path, timeout=120)

        def has_replica(node: Any) -> bool:
            return int(node.info("replication")["connected_slaves"]) == 1

        wait_until(lambda: sum(has_replica(node) for node in nodes) == 3)
        for node in nodes:
            stack.callback(node.close)
            assert node.info("cluster")["cluster_enabled"] == 1
