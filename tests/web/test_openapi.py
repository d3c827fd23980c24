"""The OpenAPI document, generated calls against it, and types of bodies, which it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import sampled_from
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field
from schemathesis.checks import CHECKS
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok

from dispatcher import QuotaExceeded
from dispatcher.web import api
from docs.openapi import document_of
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.conftest import ON_SQLITE, bearer, caller
from tests.web.test_messages import AT

OF_ALL_ANSWERS = {"content-type", "content-length", "cache-control"}
"""Headers of HTTP that the document does not describe."""
PARTS = 4
CALLS = [
    pytest.param(3, slice(None), id="few"),
    *(
        pytest.param(150, slice(part, None, PARTS), id=f"many {part}", marks=pytest.mark.long)
        for part in range(PARTS)
    ),
]
"""The calls of each operation, and which operations."""

HOW = ("whole", "partly", "generated")
"""How much of a call is given: the first is what Hypothesis begins with."""
NOT_DRIVEN = {"submit_batch"}
"""Its body is lines of JSON, which Schemathesis does not write; ``test_messages.py`` has it."""
NOT_ACCEPTED = {"events"}
"""They are off here: their answer would not end. ``test_events.py`` has it."""
DRAFT = {"channel": "memory", "recipient": "ada", "body": {"text": "hi"}, "send_at": AT}
SERIES: Any = {"rule": "FREQ=DAILY", "channel": "memory", "recipient": "ada", "body": {}}
VALID: dict[str, dict[str, Any]] = {
    "submit": {**DRAFT, "on_conflict": "shift", "priority": -7},
    "plan": {"messages": [DRAFT, DRAFT]},
    "update": {"body": {"text": "bye"}},
    "reschedule": {"send_at": AT, "on_conflict": "shift"},
    "suppress": {"channel": "memory"},
    "erase": {"recipient": "nobody"},
    "set_event": {"at": AT},
    "add_series": SERIES,
    "change_series": {"recipients": ["ada", {"recipient": "ben", "zone": "Asia/Tokyo"}]},
    "move_event": {"at": AT},
    "set_quotas": {"quotas": ["900/hour"]},
}
"""Bodies that are accepted; an empty one is, too, by the other operations."""
NAMES = {"kind": "recipient", "scope": "ada", "recipient": "ada", "name": "ada"}
STATUSES = {"retry": "failed", "release": "held", "drop": "held"}


def test_the_document_in_the_package_is_that_of_the_calls(house: House) -> None:
    app = api(house.dispatcher)
    assert document_of(app) == app.openapi(), "run `make openapi`"


class Seeds:
    """What a share of the generated calls is about, so that they are accepted."""

    def __init__(self, house: House) -> None:
        self._house = house
        house.dispatcher.suppress("ada", channel="file")
        house.dispatcher.pause("recipient", "ada")
        house.submit("ada", send_at=AT)
        house.dispatcher.events.set("ada", AT)
        with pytest.raises(QuotaExceeded):
            house.submit("ada", send_at=AT)

    def put(self, case: Any, *, whole: bool) -> None:
        """Let a call name what exists; if ``whole``, it has nothing else that was generated."""
        definition = case.operation.definition.raw
        if definition["operationId"].endswith("_series"):
            series = self._house.dispatcher.series
            if not any(series.list()) and definition["operationId"] != "add_series":
                series.add("ada", **SERIES)
            elif definition["operationId"] == "add_series":
                for one in series.list():
                    series.remove(one.name)
        for name in case.path_parameters:
            case.path_parameters[name] = self._named(name, definition["operationId"])
        body = VALID.get(definition["operationId"], {})
        if whole:
            case.query, case.headers = {}, {}
            if "requestBody" in definition:
                case.body, case.media_type = body, "application/json"
        elif isinstance(case.body, dict):
            case.body = {**case.body, **body}

    def _named(self, name: str, operation: str) -> str:
        if name != "message_id":
            return NAMES[name]
        message = self._house.submit("ada", send_at=AT, on_conflict="shift")
        status = STATUSES.get(operation, "scheduled")
        ended = self._house.database_time() if status == "failed" else None
        self._house.change([message], status=status, finished_at=ended)
        return str(message.id)


def _driven(house: House, calls: int, part: slice) -> dict[str, int]:
    """Make up to so many calls of each operation and check the answers; return how many of each."""
    app = api(house.dispatcher, rate="1000000/second")
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, config=SchemathesisConfig())
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
             "response_schema_conformance")  # fmt: skip
    checks = [CHECKS.get_one(name) for name in names]
    headers = bearer(house)
    seeds = Seeds(house)
    made: dict[str, int] = {}
    accepted: Counter[str] = Counter()

    def check(case: Any, how: str) -> None:
        made[case.operation.definition.raw["operationId"]] += 1
        if how != "generated":
            seeds.put(case, whole=how == "whole")
        answer = case.call_and_validate(headers=headers, checks=checks)
        definition = case.operation.definition.raw
        described = definition["responses"][str(answer.status_code)]
        undocumented = answer.headers.keys() - {header.lower() for header in described["headers"]}
        assert undocumented <= OF_ALL_ANSWERS
        accepted[definition["operationId"]] += answer.status_code in (200, 201)

    for result in list(schema.get_all_operations())[part]:
        assert isinstance(result, Ok)
        operation = result.ok()
        name = operation.definition.raw["operationId"]
        if name in NOT_DRIVEN:
            continue
        made[name] = 0
        bounds = settings(
            max_examples=calls, deadline=None, database=None, derandomize=True,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        drive: Callable[[], None] = bounds(
            given(case=operation.as_strategy(), how=sampled_from(HOW))(check)
        )
        drive()
    assert {name for name in made if not accepted[name]} == NOT_ACCEPTED & made.keys()
    return made


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("calls", "part"), CALLS)
def test_generated_calls_are_answered_as_the_document_says(
    build: Build, calls: int, part: slice
) -> None:
    """A part of them is accepted by each operation: so bodies of success are compared, too."""
    made = _driven(build(quotas=["1/minute"]), calls, part)
    assert set(made.values()) == {calls}


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


NESTED = st.recursive(
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
        "thePart": st.none() | NESTED,
        "part": NESTED,
        "priority": st.sampled_from([1, "1", None]),
    },
) | st.sampled_from([{}, {"kind": "news"}])


def asked(body: object, channel: str = "typed") -> dict[str, object]:
    return {"channel": channel, "recipient": "ada", "body": body, "send_at": FAR.isoformat()}


@ON_SQLITE
def test_the_server_judges_bodies_as_its_document_says(build: Build) -> None:
    plain = {"transport": "memory"}
    channels = {"typed": plain | {"body": f"{__name__}:Message"}, "plain": plain}
    shop = caller(build(channels=channels, quotas=("100000/day",)))
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
