"""A Flask program that reminds its customers.

::

    pip install '<path of the clone>[embedded,flask]'
    echo 'channels.email.transport = "console"' > dispatcher.toml
    dispatcher up                          # in a shell of its own: it sends the reminders
    flask --app examples.flask_shop run
    curl localhost:5000/reminders --header 'Idempotency-Key: visit-17' --json '{
      "email": "ada@example.org", "text": "At nine", "send_at": "2027-03-01T08:00+01:00"}'
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Flask, Response, jsonify, request

from dispatcher import Settings
from dispatcher.flask import dispatcher, init_app


def create_app(settings: Settings | None = None) -> Flask:
    """Create the app. Nothing connects before the first request, so a server may fork first."""
    app = Flask(__name__)
    init_app(app, settings)

    @app.post("/reminders")
    def remind() -> tuple[Response, int]:
        asked = request.get_json()
        message = dispatcher().submit(
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
        return {"status": dispatcher().cancel(message_id).status}

    return app
