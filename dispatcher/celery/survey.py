"""Facts of the broker and of a Celery app, ours or a user's, for the doctor and ``install``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.app.utils import find_app
from kombu import Connection

from dispatcher.celery.configuration import DELIVER, beat_schedule
from dispatcher.celery.queue import translated
from dispatcher.errors import InvalidSettings, InvalidValue, quoted
from dispatcher.settings import Settings

_NOT_THERE, _INEQUIVALENT = 404, 406
"""Answers of AMQP to a declaration."""
_ANSWERS_WITHIN = {"read_timeout": 1.0}
"""Seconds, of AMQP; other transports do not have this option."""
_DEFAULT_VISIBILITY = timedelta(hours=1)
"""kombu's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """``run_id`` and ``database`` of a Redis; our queues that exist with other arguments."""

    run_id: str | None = None
    database: int | None = None
    other_queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    """Options of a Celery app. ``redelivery`` is None where the broker has no such timeout."""

    accepts: tuple[str, ...]
    serializer: str
    redelivery: timedelta | None
    has_our_broker: bool
    has_our_route: bool
    missing_sweeps: tuple[str, ...]


def check_url(settings: Settings) -> None:
    """Raise InvalidSettings where kombu cannot use the URL of the broker. Connects to nothing."""
    field, accepted = "broker_url", "redis://…, rediss://…, amqp://… or amqps://…"
    if field not in settings.model_fields_set:
        field, accepted = "redis_url", "redis://…, rediss://… or unix://…"
    try:
        Connection(settings.broker_url).transport  # noqa: B018 - loads the client library
    except ImportError as error:
        problem = f"its client is missing ({error})"
        raise InvalidSettings(field, problem, "an installed one") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidSettings(field, "cannot be read", accepted) from None


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise translated(error, what) from error


@_translated("the broker cannot be reached")
def broker_facts(app: Celery) -> BrokerFacts:
    """Ask the broker to which ``app`` publishes. Raises QueueUnavailable."""
    with closing(app.connection_for_write()) as connection:
        channel: Any = connection.default_channel  # only the channel of Redis has a client
        if connection.transport.driver_type != "redis":
            return BrokerFacts(other_queues=_other_queues(connection, app.amqp.queues.values()))
        client = channel.client
        return BrokerFacts(
            run_id=str(client.info("server").get("run_id", "")),
            database=int(client.connection_pool.connection_kwargs.get("db") or 0),
        )


class BrokerProbe:
    """Asks the broker whether it answers, on a connection that it keeps, by one thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None

    def ask(self) -> None:
        """Return when the broker has answered, perhaps on a new line. Raises QueueUnavailable."""
        with _translated("the broker does not answer"):
            is_new = self._connection is None
            try:
                self._ask()
            except Exception:
                self.close()
                if is_new:
                    raise
                self.ask()

    def close(self) -> None:
        """End the connection, without a word to a broker that may not answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()

    def _ask(self) -> None:
        if self._connection is None:
            self._connection = self._app.connection_for_write(transport_options=_ANSWERS_WITHIN)
        channel: Any = self._connection.default_channel
        if self._connection.transport.driver_type == "redis":
            channel.client.ping()
        else:
            another: Any = self._connection.channel()
            another.close()


@_translated("the options of the Celery app cannot be read")
def app_facts(app: Celery, settings: Settings) -> AppFacts:
    """Compare an app with the settings. Connects to nothing. Raises QueueUnavailable."""
    conf: Any = app.conf
    route: dict[str, Any] = app.amqp.router.route({}, DELIVER)
    planned = {entry.get("task") for entry in conf.beat_schedule.values()}
    options: dict[str, Any] = conf.broker_transport_options or {}
    writes, reads = app.connection_for_write(), app.connection_for_read()
    redelivery = None
    if reads.transport.driver_type == "redis":
        seconds = options.get("visibility_timeout")
        redelivery = timedelta(seconds=seconds) if seconds is not None else _DEFAULT_VISIBILITY
    lines = (writes, reads, app.connection_for_write(settings.broker_url))
    has_one_address = len({line.as_uri(include_password=True) for line in lines}) == 1
    return AppFacts(
        accepts=tuple(sorted(name.removeprefix("application/") for name in conf.accept_content)),
        serializer=conf.task_serializer.removeprefix("application/"),
        redelivery=redelivery,
        has_our_broker=has_one_address and not options.get("global_keyprefix"),
        has_our_route=getattr(route.get("queue"), "name", route.get("queue")) == settings.queue,
        missing_sweeps=tuple(
            name.removeprefix("dispatcher.")
            for name in beat_schedule(settings)
            if name not in planned
        ),
    )


def load_app(name: str) -> Celery:
    """Return the Celery app of that name, as ``celery -A`` finds it. Raises InvalidValue."""
    accepted = "package.module, or package.module:attribute"
    try:
        app = find_app(name)
    except Exception as error:
        problem = f"cannot load {quoted(name)} ({type(error).__name__})"
        raise InvalidValue("app", problem, accepted) from error
    if not isinstance(app, Celery):
        raise InvalidValue("app", f"{quoted(name)} is no Celery app", accepted)
    return app


def _other_queues(connection: Any, ours: Iterable[Any]) -> tuple[str, ...]:
    """Return which of our queues exist with other arguments. Creates none."""
    others = []
    for queue in ours:
        try:
            bound = queue.bind(connection.channel())
            bound.queue_declare(passive=True)
            bound.queue_declare()
        except connection.channel_errors as error:
            if getattr(error, "reply_code", None) == _INEQUIVALENT:
                others.append(queue.name)
            elif getattr(error, "reply_code", None) != _NOT_THERE:
                raise
    return tuple(sorted(others))
