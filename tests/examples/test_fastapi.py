"""The FastAPI example, through Starlette's own client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from examples.fastapi_shop import create_app
from tests.examples.conftest import TOMORROW
from tests.support.house import House

ASKED = {"email": "ada@example.org", "text": "See you", "send_at": TOMORROW.isoformat()}


def key(text: str) -> dict[str, str]:
    return {"Idempotency-Key": text}


@pytest.fixture
def client(house: House) -> Iterator[TestClient]:
    with TestClient(create_app(house.settings)) as client:
        yield client


def test_a_reminder_is_accepted_once_for_each_key_and_found(
    client: TestClient, house: House
) -> None:
    answers = [client.post("/reminders", json=ASKED, headers=key("17")) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 201]
    [message] = [*house.dispatcher.select()]
    found = client.get(f"/reminders/{message.id}").json()
    assert found == answers[0].json() == answers[1].json()
    assert found["status"] == "scheduled"
    assert (found["id"], datetime.fromisoformat(found["send_at"])) == (str(message.id), TOMORROW)


def test_refusals_are_typed(client: TestClient, house: House) -> None:
    client.post("/reminders", json=ASKED, headers=key("17"))
    full = client.post("/reminders", json=ASKED, headers=key("18"))
    assert full.status_code == 409
    assert datetime.fromisoformat(full.json()["next_slot"]) == TOMORROW + timedelta(minutes=1)
    other = client.post("/reminders", json=ASKED | {"text": "other"}, headers=key("17"))
    assert (other.status_code, "next_slot" in other.json()) == (422, False)
    soon = client.post("/reminders", json=ASKED | {"send_at": "soon"}, headers=key("19"))
    assert (soon.status_code, soon.json()["field"]) == (422, "send_at")
    assert client.get(f"/reminders/{uuid4()}").status_code == 404
    house.redis.flushall()
    assert client.post("/reminders", json=ASKED, headers=key("20")).status_code == 503
