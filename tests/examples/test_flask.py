"""The Flask example, through Flask's own client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from flask.testing import FlaskClient

from dispatcher import Status
from examples.flask_shop import create_app
from tests.examples.conftest import TOMORROW
from tests.support.house import House

ASKED = {"email": "ada@example.org", "text": "See you", "send_at": TOMORROW.isoformat()}


@pytest.fixture
def client(house: House) -> Iterator[FlaskClient]:
    app = create_app(house.settings)
    yield app.test_client()
    app.extensions["dispatcher"].close()


def test_a_reminder_is_accepted_repeated_and_forgotten(client: FlaskClient, house: House) -> None:
    key = {"Idempotency-Key": "visit-17"}
    first = client.post("/reminders", json=ASKED, headers=key)
    assert first.status_code == 201
    assert client.post("/reminders", json=ASKED, headers=key).json == first.json
    [message] = [*house.dispatcher.select()]
    assert first.json == {"id": str(message.id), "send_at": TOMORROW.isoformat()}
    assert client.delete(f"/reminders/{message.id}").json == {"status": "cancelled"}
    assert house.again(message).status is Status.CANCELLED


def test_a_refused_reminder_is_a_conflict_with_the_next_slot(client: FlaskClient) -> None:
    client.post("/reminders", json=ASKED)
    refused = client.post("/reminders", json=ASKED)
    assert refused.status_code == 409
    assert refused.json is not None
    slot = datetime.fromisoformat(refused.json["next_slot"])
    assert slot == TOMORROW + timedelta(minutes=1)
    assert client.post("/reminders", json=ASKED | {"send_at": slot.isoformat()}).status_code == 201
