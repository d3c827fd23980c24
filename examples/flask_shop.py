"""A Flask program that reminds its customers.

::

    pip install flask
    flask --app examples.flask_shop run

``dispatcher up`` sends the reminders.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Flask, Response, jsonify, request

from dispatcher import (
    Dispatcher,
    DispatcherError,
    InvalidValue,
    MessageNotFound,
    Settings,
    SlotRefused,
    Unavailable,
)

STATUS = ((InvalidValue, 422), (MessageNotFound, 404), (Unavailable, 503))
"""HTTP status of an error; all others are 409, a conflict."""


def create_app(settings: Settings | None = None) -> Flask:
    """Create the app. Nothing connects before the first request, so a server may fork first."""
    app = Flask(__name__)
    dispatcher = app.extensions["dispatcher"] = Dispatcher(settings)

    @app.post("/reminders")
    def remind() -> tuple[Response, int]:
        asked = request.get_json()
        message = dispatcher.submit(
            channel="email",
            recipient=asked.get("email"),
            body={"text": asked.get("text")},
            send_at=asked.get("send_at"),
            zone=asked.get("zone"),
            idempotency_key=request.headers.get("Idempotency-Key"),
        )
        return jsonify(id=message.id, send_at=message.send_at.isoformat()), 201

    @app.delete("/reminders/<uuid:message_id>")
    def forget(message_id: UUID) -> dict[str, Any]:
        return {"status": dispatcher.cancel(message_id).status}

    @app.errorhandler(DispatcherError)
    def refuse(error: DispatcherError) -> tuple[dict[str, Any], int]:
        answer: dict[str, Any] = {"error": str(error)}
        if isinstance(error, SlotRefused):
            answer["next_slot"] = error.next_slot.isoformat()
        return answer, next((code for kind, code in STATUS if isinstance(error, kind)), 409)

    return app
