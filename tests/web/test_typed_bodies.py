"""Types of bodies by HTTP: the OpenAPI document has them, and the API judges as it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.conftest import ON_SQLITE

pytestmark = ON_SQLITE

HERE = __name__


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(max_length=3)]
    parts: list[Part] = []


class Message(BaseModel):
    """It shares its name with a schema of the API's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["news", "bill"]
    part: Annotated[Part | None, Field(alias="thePart")] = None
    priority: int = 3


@pytest.fixture
def house(build: Build) -> House:
    channel = {"transport": "memory"}
    return build(
        channels={
            "typed": channel | {"body": f"{HERE}:Message"},
            "plain": channel,
        },
        quotas=("100000/day",),
    )


PARTS = st.recursive(
    st.fixed_dictionaries({"name": st.sampled_from(["a", "abcd", 1])}),
    lambda parts: st.fixed_dictionaries(
        {"name": st.just("a")}, optional={"parts": st.lists(parts, max_size=2)}
    ),
    max_leaves=4,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["news", "bill", "gift", 1]),
        "thePart": st.none() | PARTS,
        "part": PARTS,
        "priority": st.sampled_from([1, "1", None]),
    },
) | st.sampled_from([{}, {"kind": "news"}])


def asked(body: object, channel: str = "typed") -> dict[str, object]:
    return {"channel": channel, "recipient": "ada", "body": body, "send_at": FAR.isoformat()}


def test_the_server_judges_bodies_as_its_document_says(shop: TestClient) -> None:
    document = shop.get("/v1/openapi.json").json()
    of_new = Draft202012Validator(
        {"$ref": "#/components/schemas/NewMessage", "components": document["components"]}
    )

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=BODIES, channel=st.sampled_from(["typed", "typed", "plain"]))
    def judge(body: Mapping[str, Any], channel: str) -> None:
        answer = shop.post("/v1/plans", json={"messages": [asked(body, channel)]})
        assert answer.status_code == 200, answer.text
        is_accepted = answer.json()["accepted"] == 1
        assert is_accepted == of_new.is_valid(asked(body, channel)), answer.text

    judge()
