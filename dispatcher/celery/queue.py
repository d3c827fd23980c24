"""The broker: publishes ids of messages to it, and asks it, and Celery apps, for the doctor.

A lost task loses no message: the sweep enqueues it again.
"""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import redis
from celery import Celery
from celery.app.utils import find_app
from kombu import Connection
from kombu.connection import ConnectionPool
from kombu.exceptions import VersionMismatch
from kombu.pools import ProducerPool

from dispatcher.celery.configuration import DELIVER, beat_schedule
from dispatcher.errors import InvalidSettings, InvalidValue, QueueUnavailable, quoted
from dispatcher.redis import errors as of_redis
from dispatcher.settings import Settings
from dispatcher.telemetry.journal import Journal, Transition
from dispatcher.times.clock import Clock

EARLY = timedelta(milliseconds=20)
"""How long before its first message is due a task begins, to claim and to take permits."""
_PAUSE_SECONDS = 1.0
_BATCH = 500
_REFUSALS: dict[object, tuple[str, str]] = {
    403: (
        "the broker refuses the user or the password, or a right of the user",
        "correct them in broker_url, or give the user all rights there",
    ),
    530: (
        "the broker has no such virtual host, or the user lacks the right to it",
        "create it, grant the right, or correct broker_url",
    ),
}
"""Meaning and remedy of AMQP's refusals of a client, by their code."""
_FITTING_VERSIONS = "install 'kombu<5.7', or redis 6.1 or newer"
"""The remedy where kombu refuses the installed redis-py."""
_NOT_THERE, _INEQUIVALENT = 404, 406
"""Answers of AMQP to a declaration."""
_ANSWERS_WITHIN = {"read_timeout": 1.0}
"""Seconds, of AMQP; other transports do not have this option."""
_DEFAULT_VISIBILITY = timedelta(hours=1)
"""kombu's default."""


class Ticket(NamedTuple):
    """A message to enqueue, and when it is due.

    ``alone``: it shares its task with no other message. ``is_first``: ``due_at`` is the promised
    time, so its task begins early; after a retry or a snooze the task begins no earlier than that,
    because no permit is free before. Larger priorities go first, and shares in turns.
    """

    message_id: UUID
    channel: str
    due_at: datetime
    alone: bool = False
    is_first: bool = True
    priority: int = 0
    share: str = ""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Messages that share a task. A worker that has many begins the one of the least ``rank``.

    A Redis broker gives it those that are not ``is_bulk`` first: what is snoozed must come back in
    its turn, and what is urgent at all, past the tasks of a large share.
    """

    channel: str
    message_ids: tuple[UUID, ...]
    begins_at: datetime
    is_first: bool = True
    rank: int = 0
    is_bulk: bool = False


ROUNDS = 512
"""Of the shares that a rank tells apart, of what comes again and of what comes first."""
_ROUNDS_AHEAD = 32
_BULK = 1_000
"""Messages in one task, which a worker splits: thousands of tasks would keep it from others."""
_LAST = 9
"""The priority whose list a Redis broker reads last. A quorum queue would read it first."""


def group(tickets: Iterable[Ticket], *, coalesce: timedelta, size: int) -> Iterator[TaskGroup]:
    """Group messages of one channel that are due within ``coalesce``, at most ``size`` a group.

    Of messages due at one time those go first that are the first of their share here; the many
    further ones are bulk.
    """
    rounds = Counter[tuple[object, ...]]()
    ordered = list[tuple[tuple[object, ...], datetime, int, Ticket]]()
    for ticket in tickets:
        share = ticket.channel, ticket.priority, ticket.is_first, ticket.share
        turn = min(rounds[share], ROUNDS - 1)
        rounds[share] += bool(ticket.share)
        is_bulk = ticket.is_first and (turn >= _ROUNDS_AHEAD or ticket.priority < 0)
        kind: tuple[object, ...] = (
            ticket.alone,
            ticket.channel,
            -ticket.priority,
            ticket.is_first,
            is_bulk,
        )
        ordered.append((kind, ticket.due_at, turn, ticket))
    ordered.sort(key=itemgetter(0, 1, 2))
    groups: list[list[tuple[tuple[object, ...], datetime, int, Ticket]]] = []
    for entry in ordered:
        kind, due_at, _, ticket = entry
        if (
            not groups
            or ticket.alone
            or kind != groups[-1][0][0]
            or due_at - groups[-1][0][1] > coalesce
            or len(groups[-1]) == (_BULK if kind[-1] else size)
        ):
            groups.append([])
        groups[-1].append(entry)
    for members in groups:
        kind, due_at, turn, first = members[0]
        begins_at = due_at - EARLY if first.is_first else members[-1][1]
        ids = tuple(member.message_id for *_, member in members)
        rank = turn + ROUNDS * (first.is_first - 2 * first.priority)
        yield TaskGroup(first.channel, ids, begins_at, first.is_first, rank, bool(kind[-1]))


def rank_of(said: int) -> int:
    """Return the rank that a task says. A usual one is a bool, as older workers know it."""
    return ROUNDS * said if isinstance(said, bool) else said


class _Connections(ConnectionPool):
    """Connections of the queue's own: kombu shares pools between apps.

    A child that multiprocessing forks shuts the sockets of its parent's shared pools down.
    """

    close_after_fork = False


class _Producers(ProducerPool):
    close_after_fork = False


class Queue:
    """Publishes ``deliver`` tasks with an ETA, each channel's to its own queue.

    Raises QueueUnavailable within about a second. After a failure every call fails at once for a
    second, so that many submits do not each wait for the broker.
    """

    def __init__(self, app: Celery, settings: Settings, *, clock: Clock, journal: Journal) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._declared: set[str] = set()
        self._paused_until = 0.0
        self._bulk = {"priority": _LAST} if "amqp" not in settings.broker_url.split(":")[0] else {}
        self._open()

    def _open(self) -> None:
        limit = self._app.conf.broker_pool_limit
        self._connections: Any = _Connections(self._app.connection_for_write(), limit)
        self._producers: Any = _Producers(self._connections, limit)

    def close(self) -> None:
        self._connections.force_close_all()

    def enqueue(self, tickets: Sequence[Ticket]) -> None:
        """Publish tasks for these messages. Raises QueueUnavailable: some may be published."""
        if self._clock.monotonic() < self._paused_until:
            raise QueueUnavailable("the broker did not answer a moment ago")
        now = self._clock.now()
        # Late messages are all due now, so that they share tasks.
        late = [ticket._replace(due_at=max(now, ticket.due_at)) for ticket in tickets]
        groups = group(late, coalesce=self._settings.coalesce, size=self._settings.group_size)
        try:
            self._publish(list(groups))
        except Exception as error:
            if isinstance(
                error, redis.exceptions.ReadOnlyError
            ):  # a replica by now, whose name may lead elsewhere
                self.close()
                self._open()
            self._declared.clear()
            self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS
            raise translated(error, "the broker did not take the tasks") from error
        for message_id, channel, due_at, *_ in tickets:
            self._journal.tell_of(Transition.ENQUEUED, message_id, channel, due_at=due_at)

    def _publish(self, groups: Sequence[TaskGroup]) -> None:
        now = self._clock.now()
        amqp: Any = self._app.amqp  # celery-types lacks its methods
        with self._producers.acquire(block=True, timeout=1) as producer:
            for name in {self._settings.queue_of(task.channel) for task in groups} - self._declared:
                producer.maybe_declare(amqp.queues[name])
                self._declared.add(name)
            # kombu before 5.7 has no batches: each task is a round trip.
            batch: Any = getattr(producer, "batch", nullcontext)
            with batch(_BATCH):
                for task in groups:
                    ids = [str(message_id) for message_id in task.message_ids]
                    content = amqp.create_task_message(
                        str(uuid4()),
                        DELIVER,
                        (
                            ids,
                            task.channel,
                            task.is_first if task.rank == rank_of(task.is_first) else task.rank,
                        ),
                        {},
                        eta=task.begins_at if task.begins_at > now else None,
                        ignore_result=True,
                        argsrepr="",
                        kwargsrepr="",
                    )
                    queue = amqp.queues[self._settings.queue_of(task.channel)]
                    # On quorum queues send_task would let the broker wait, in whole seconds.
                    amqp.send_task_message(
                        producer,
                        DELIVER,
                        content,
                        queue=queue,
                        declare=[],
                        retry=False,
                        **(self._bulk if task.is_bulk else {}),
                    )


def translated(error: Exception, what: str) -> QueueUnavailable:
    """Return an error of kombu as ours. ``what`` says what failed."""
    if isinstance(error, VersionMismatch):
        return QueueUnavailable(f"{what}: {error}", remedy=_FITTING_VERSIONS)
    if (code := getattr(error, "reply_code", 0)) in _REFUSALS:
        reason, remedy = _REFUSALS[code]
        return QueueUnavailable(reason, remedy=remedy)
    cause = error.__cause__ or error  # kombu puts errors of the line into one of its own
    if isinstance(cause, redis.RedisError):
        helps = of_redis.remedy(cause).replace("redis_url", "broker_url")
        if helps == of_redis.FOREIGN_KEY:  # of reservations, which are not the broker's
            helps = "find the program that writes to the queues of this broker"
        return QueueUnavailable(of_redis.reason(cause), remedy=helps)
    if isinstance(cause, socket.gaierror):
        helps = "correct it in broker_url, or let this machine resolve it"
        return QueueUnavailable("the host name of the broker is unknown", remedy=helps)
    if isinstance(cause, ssl.SSLError):
        helps = "correct broker_url, or the certificate of the broker"
        return QueueUnavailable("TLS with the broker fails", remedy=helps)
    return QueueUnavailable(f"{what} ({type(error).__name__})")


# Facts, for the doctor and `install`.


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
        problem = f"its client is not installed ({error})"
        raise InvalidSettings(field, problem, "an installed client, or another URL") from None
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
