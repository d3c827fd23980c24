"""A FastAPI program that reminds its customers.

::

    pip install '<path of the clone>[embedded,fastapi]' uvicorn
    echo 'channels.email.transport = "console"' > dispatcher.toml
    dispatcher up                          # in a shell of its own: it sends the reminders
    uvicorn examples.fastapi_shop:app --port 8001
    curl localhost:8001/reminders --header 'Idempotency-Key: visit-17' --json '{
      "email": "ada@example.org", "text": "At nine", "send_at": "2027-03-01T08:00+01:00"}'

Its event loop does not block: threads call Redis and the database. Each request has an idempotency
key, so a request that was cancelled can be sent again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel

from dispatcher import Dispatcher, DispatcherError, Settings, Status
from dispatcher.fastapi import answer_error, dispatcher, lifespan

Ours = Annotated[Dispatcher, Depends(dispatcher())]


class Reminder(BaseModel):
    """The request for a reminder."""

    email: str
    text: str
    send_at: str
    zone: str | None = None


class Accepted(BaseModel):
    """The answer to an accepted request."""

    id: UUID
    send_at: datetime
    status: Status


def create_app(settings: Settings | None = None) -> FastAPI:
    """Create the app."""
    app = FastAPI(lifespan=lifespan(settings))
    app.add_exception_handler(DispatcherError, answer_error)

    @app.post("/reminders", status_code=201)
    async def remind(
        ours: Ours, asked: Reminder, idempotency_key: Annotated[str, Header()]
    ) -> Accepted:
        message = await ours.asubmit(
            channel="email",
            recipient=asked.email,
            body={"text": asked.text},
            send_at=asked.send_at,
            zone=asked.zone,
            idempotency_key=idempotency_key,
        )
        return Accepted.model_validate(message, from_attributes=True)

    @app.get("/reminders/{message_id}")
    async def look(ours: Ours, message_id: UUID) -> Accepted:
        return Accepted.model_validate(await ours.aget(message_id), from_attributes=True)

    return app


app = create_app()
