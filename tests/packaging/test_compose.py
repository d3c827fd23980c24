"""The Compose file and the image: no default password, few rights, exact versions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.operations.doctor import redis_checks
from dispatcher.operations.doctor.finding import Level
from tests.operations.test_doctor_checks import SOUND

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]


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
    assert len(images) == 3
    for each in images:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?(-slim-[a-z]+)?", each), each


def test_the_doctor_knows_no_vulnerability_of_the_redis_servers() -> None:
    for service in SERVICES.values():
        name, _, version = service["image"].partition(":")
        if name == "redis":
            facts = replace(SOUND, version=version, valkey="", is_private=False)
            assert redis_checks.vulnerabilities(facts).level is Level.OK, version
