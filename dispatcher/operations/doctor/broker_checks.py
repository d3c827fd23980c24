"""Checks of the broker and of the Celery app that uses it."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from dispatcher.broker.survey import AppFacts, BrokerFacts
from dispatcher.errors import InvalidSettings
from dispatcher.operations.doctor.finding import Check, Verdict, check, error, ok, warning
from dispatcher.reservation import RedisFacts
from dispatcher.settings import Settings

_CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's default: how long a task may stay unacknowledged."""


class Servers(NamedTuple):
    """The facts of broker and windows, which may be one server."""

    broker: BrokerFacts
    redis: RedisFacts


@check("broker.separate")
def separate(facts: Servers) -> Verdict:
    """Warn of a broker in the database of the windows: to empty it is to empty them."""
    broker, redis = facts
    if broker.run_id is None or broker.run_id != redis.run_id:
        return ok("not the server of the windows")
    if broker.database != redis.database:
        return ok(f"database {broker.database} of the server of the windows")
    return warning(
        f"broker and windows share database {redis.database} of one Redis: emptying the broker "
        "empties the windows, and a flooded queue fills the memory that bookings need",
        "give the broker a Redis of its own, or another database number in broker_url",
    )


def queues(settings: Settings) -> Check[BrokerFacts]:
    """Return the check that existing queues have the arguments of the settings.

    A worker cannot consume from others, and would reconnect again and again.
    """

    def judge(broker: BrokerFacts) -> Verdict:
        if not broker.other_queues:
            return ok("each queue can be used, or does not exist yet")
        named = ", ".join(broker.other_queues)
        other = "classic" if settings.queue_type == "quorum" else "quorum"
        return error(
            f"there but not as queue_type = {settings.queue_type!r} makes them: {named}",
            "stop the workers and delete these queues (rabbitmqctl delete_queue …): the tasks in "
            f"them are enqueued again; or set queue_type = {other!r}",
            stops_worker=True,
        )

    return Check("broker.queues", judge)


@check("app.serializer")
def serializer(app: AppFacts) -> Verdict:
    """Warn of content types by which a forged task can run code in a worker."""
    if app.accepts == ("json",) and app.serializer == "json":
        return ok("JSON only")
    return error(
        f"the app accepts {', '.join(app.accepts)} and writes {app.serializer}: a forged task of "
        "another form can run code in a worker, and tasks that are no JSON are refused by others",
        "set accept_content = ['json'] and task_serializer = 'json'",
        stops_worker=True,
    )


def redelivery(settings: Settings) -> Check[AppFacts]:
    """Return the check that the app's timeout keeps the rules of the settings."""

    def judge(app: AppFacts) -> Verdict:
        if app.redelivery is None:
            return _held_by_a_consumer(settings.horizon)
        given = {"redelivery_timeout": app.redelivery.total_seconds()}
        try:
            Settings.load(**settings.model_dump() | given)
        except InvalidSettings as refused:
            return error(
                f"visibility_timeout is {app.redelivery}: {refused.problem}",
                "set broker_transport_options['visibility_timeout'] to more than twice the horizon "
                f"of {settings.horizon}, or tasks that wait for their ETA are redelivered",
            )
        return ok(f"visibility_timeout {app.redelivery}, horizon {settings.horizon}")

    return Check("app.redelivery", judge)


def _held_by_a_consumer(horizon: timedelta) -> Verdict:
    if horizon < _CONSUMER_TIMEOUT:
        return ok(f"horizon {horizon}, below the consumer_timeout of RabbitMQ")
    return warning(
        f"the horizon is {horizon}: RabbitMQ closes the connection to a worker that has a task "
        f"unacknowledged for longer than consumer_timeout, by default {_CONSUMER_TIMEOUT}",
        "shorten horizon, or raise consumer_timeout",
    )


@check("app.attached")
def attached(app: AppFacts) -> Verdict:
    """Check that the dispatcher is installed in the app."""
    wrong = []
    if not app.has_our_broker:
        wrong.append("its broker is not broker_url")
    if not app.has_our_route:
        wrong.append("dispatcher.deliver is not routed to the dispatcher's queue")
    if app.missing_sweeps:
        wrong.append(f"its beat does not start {', '.join(app.missing_sweeps)}")
    if not wrong:
        return ok("broker, route and sweep are there")
    return error(
        "; ".join(wrong),
        "call dispatcher.install(app, settings) after setting the app's own options, and give both "
        "the same broker_url",
    )
