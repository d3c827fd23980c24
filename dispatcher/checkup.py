"""Gives a doctor what it examines with: a client without the fence, and a Celery app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery

from dispatcher.bootstrap import Parts, connect_redis
from dispatcher.broker.survey import BrokerSurvey, check_url
from dispatcher.celery_app import beat_schedule, create_app
from dispatcher.operations.doctor import Doctor
from dispatcher.reservation import RedisSurvey
from dispatcher.settings import Settings
from dispatcher.store import StoreSurvey
from dispatcher.times.clock import Clock


@contextmanager
def doctor_for(
    settings: Settings, *, clock: Clock | None = None, app: Celery | None = None
) -> Iterator[Doctor]:
    """Yield a doctor for a deployment with these settings; close its connections on exit.

    ``app`` is a Celery app of the user's that the dispatcher was installed in; by default the
    dispatcher's own is examined. Raises InvalidSettings.
    """
    check_url(settings.broker_url)
    parts = Parts(settings, clock)
    publishing = create_app(settings, submitting=True)
    try:
        client = connect_redis(settings.redis_url)
        try:
            yield Doctor(
                settings=settings,
                clock=parts.clock,
                redis=RedisSurvey(client, parts.fence),
                signs=parts.signs,
                store=StoreSurvey(parts.database),
                broker=BrokerSurvey(
                    publishing,
                    app or publishing,
                    broker_url=settings.broker_url,
                    queue=settings.queue,
                    sweeps=beat_schedule(settings),
                ),
                templates=parts.templates,
            )
        finally:
            client.close()
    finally:
        publishing.close()
        parts.close()
