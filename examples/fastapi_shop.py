"""A FastAPI program that reminds its customers.

::

    pip install fastapi uvicorn
    uvicorn examples.fastapi_shop:app

Its event loop does not block: threads call Redis and the database. Each request has an idempotency
key, so a request that was cancelled can be sent again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from dispatcher import (
    Dispatcher,
    DispatcherError,
    InvalidValue,
    MessageNotFound,
    Settings,
    SlotRefused,
    Status,
    Unavailable,
)


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

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Dispatcher(settings) as app.state.dispatcher:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/reminders", status_code=201)
    async def remind(
        request: Request, asked: Reminder, idempotency_key: Annotated[str, Header()]
    ) -> Accepted:
        dispatcher: Dispatcher = request.app.state.dispatcher
        message = await dispatcher.asubmit(
            channel="email",
            recipient=asked.email,
            body={"text": asked.text},
            send_at=asked.send_at,
            zone=asked.zone,
            idempotency_key=idempotency_key,
        )
        return Accepted.model_validate(message, from_attributes=True)

    @app.get("/reminders/{message_id}")
    async def look(request: Request, message_id: UUID) -> Accepted:
        dispatcher: Dispatcher = request.app.state.dispatcher
        return Accepted.model_validate(await dispatcher.aget(message_id), from_attributes=True)

    @app.exception_handler(DispatcherError)
    async def refuse(_: Request, error: DispatcherError) -> JSONResponse:
        match error:
            case SlotRefused(next_slot=slot):
                detail = {"error": str(error), "next_slot": slot.isoformat()}
                return JSONResponse(detail, 409)
            case InvalidValue():
                code = 422
            case MessageNotFound():
                code = 404
            case Unavailable():
                code = 503
            case _:
                code = 409
        return JSONResponse({"error": str(error)}, code)

    return app


app = create_app()
