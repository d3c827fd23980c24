"""The OpenAPI document, and generated calls against it."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok

from dispatcher.web import api
from dispatcher.web.access import add_key
from dispatcher.web.openapi import _MORE
from tests.support.house import House

CALLS = 8
CALLS_IN_ALL = 700
"""Of each of the 17 operations: together more than 10,000."""


def test_the_document_names_every_problem(shop: TestClient) -> None:
    document = shop.get("/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path in document["paths"].values():
        for operation in path.values():
            statuses = set(operation["responses"])
            assert statuses >= {"400", "401", "403", "422", "429", "500", "503"}
            assert operation["summary"]
            assert operation["description"]
    assert "HTTPValidationError" not in json.dumps(document)


def test_the_document_in_the_package_is_that_of_the_server(house: House) -> None:
    packed = resources.files("dispatcher.web").joinpath("openapi.json").read_text()
    assert json.loads(packed) == api(house.dispatcher).openapi(), "run `make openapi`"


def _driven(house: House, calls: int) -> None:
    app = api(house.dispatcher, rate="1000000/second")
    _, token = add_key(house.parts.api_keys, "shop")
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, config=SchemathesisConfig())
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
             "response_schema_conformance")  # fmt: skip
    checks = [CHECKS.get_one(each) for each in names]
    headers = {"Authorization": f"Bearer {token}"}
    made = 0

    def check(case: Any) -> None:
        nonlocal made
        made += 1
        case.call_and_validate(headers=headers, checks=checks)

    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if operation.path.endswith("/batch"):
            continue  # lines of JSON, which Schemathesis does not write
        bounds = settings(
            max_examples=calls, deadline=None, database=None, derandomize=True,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        drive: Callable[[], None] = bounds(given(case=operation.as_strategy())(check))
        drive()
    assert made >= calls * len(_MORE) / 2


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("calls", [CALLS, pytest.param(CALLS_IN_ALL, marks=pytest.mark.long)])
@pytest.mark.timeout(1_800)
def test_generated_calls_are_answered_as_the_document_says(house: House, calls: int) -> None:
    _driven(house, calls)
