"""What is taken as text, as a body, and as the same content, whose digests are stored."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher import Draft, Settings
from dispatcher.errors import InvalidDraft
from dispatcher.message import check_body, dump_json, fingerprint, new_id
from dispatcher.submission.validation import validate_fields
from tests.support.house import FAR

LIMITS: dict[str, Any] = {"max_bytes": 200, "max_depth": 4}


def test_mappings_and_tuples_become_plain_json() -> None:
    body = MappingProxyType({"a": (1, (2,)), "b": OrderedDict(c=1)})
    clean, _ = check_body(body, **LIMITS)
    assert clean == {"a": [1, [2]], "b": {"c": 1}}
    assert type(clean) is dict


def test_the_limits_are_exact() -> None:
    assert check_body({"a": [[[]]]}, max_bytes=100, max_depth=4)
    with pytest.raises(InvalidDraft, match="too many levels"):
        check_body({"a": [[[[]]]]}, max_bytes=100, max_depth=4)
    body = {"a": "ü" * 10}
    size = len(dump_json(body).encode())
    assert check_body(body, max_bytes=size, max_depth=1)
    with pytest.raises(InvalidDraft, match=f"{size} bytes"):
        check_body(body, max_bytes=size - 1, max_depth=1)


def test_a_body_that_contains_itself_is_refused() -> None:
    body: dict[str, Any] = {}
    body["self"] = body
    circle: list[Any] = []
    circle.append(circle)
    for cyclic in (body, {"a": circle}):
        with pytest.raises(InvalidDraft, match="too many levels"):
            check_body(cyclic, max_bytes=65_536, max_depth=200)


@pytest.mark.timeout(10, method="signal")
def test_a_small_body_that_unfolds_into_a_huge_one_is_refused_in_time() -> None:
    body: list[Any] = []
    for _ in range(30):
        body = [body, body]
    with pytest.raises(InvalidDraft):
        check_body({"a": body}, max_bytes=65_536, max_depth=32)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner
    ),
    max_leaves=10,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is slow
@given(st.dictionaries(st.just("key"), json_values))
def test_every_accepted_body_survives_json(body: dict[str, Any]) -> None:
    clean, _ = check_body(body, max_bytes=1_000_000, max_depth=200)
    assert json.loads(dump_json(clean)) == body


@pytest.mark.parametrize(
    "body", [{"a": 2}, {"a": 1.0}, {"a": "1"}, {"a": True}, {"a": [1]}, {"b": 1}, {}, {"a": None}]
)
def test_a_fingerprint_depends_on_content_and_not_on_order(body: dict[str, Any]) -> None:
    assert fingerprint(body=body) != fingerprint(body={"a": 1})
    assert fingerprint(body=body, at=FAR) == fingerprint(at=FAR, body=dict(reversed(body.items())))


def test_ids_are_ordered_by_the_time_they_were_made() -> None:
    ids = [new_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert ids == sorted(ids)
    assert {message_id.version for message_id in ids} == {7}


STORED: list[tuple[dict[str, Any], str]] = [
    (
        {"send_at": "2100-01-02T10:00+01:00"},
        "5a49c8ad599d8e72a510914cb269ea51481adf6ebe70363fbf3d0f2e3d4ba56e",
    ),
    (
        {"send_in": timedelta(hours=1)},
        "6bc46994725729481be048c4481f5fc94063225f7ae5f55ac0b4f5355ddcec41",
    ),
    (
        {
            "send_at": "2100-01-02T09:00Z", "scope": "team", "scopes": {"tenant": "acme"},
            "expires_at": "2100-01-03T09:00Z", "on_conflict": "shift",
        },
        "328894d3b7da40eaedc9fb342b8a77127de55826a68a02738b35422f3c32802d",
    ),
]  # fmt: skip


WITH_LENGTH = "637120a85c5d46290486356edb21ed00e315dfaa3d1b288fbe173666d6377ce3"


@pytest.mark.parametrize("moment", [FAR, FAR + timedelta(microseconds=1)], ids=["even", "odd"])
def test_a_length_has_one_digest_whenever_it_is_judged(moment: datetime) -> None:
    settings = Settings.load(channels={"memory": {"transport": "memory"}})
    draft = Draft(
        channel="memory", recipient="ada", body={}, idempotency_key="key",
        send_in=timedelta(hours=1), expire_after=timedelta(hours=1), on_unknown="hold",
    )  # fmt: skip
    assert validate_fields(draft, settings=settings, now=moment).fingerprint == WITH_LENGTH


@pytest.mark.parametrize(("asked", "digest"), STORED)
def test_a_draft_without_zone_and_hours_has_the_digest_it_always_had(
    asked: dict[str, Any], digest: str
) -> None:
    settings = Settings.load(
        channels={"memory": {"transport": "memory"}}, scopes={"tenant": {"quotas": "9/day"}}
    )
    draft = Draft(
        channel="memory", recipient="ada", body={"text": "hello"}, idempotency_key="key", **asked
    )
    assert validate_fields(draft, settings=settings, now=FAR).fingerprint == digest
