"""Installs the dispatcher in a Celery app of the user, beside the app's own tasks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from kombu import Exchange, Queue

from dispatcher.celery.configuration import (
    TASKS_MODULE,
    WORKER_STEP,
    beat_schedule,
    queues,
    remember,
    settings_of,
)
from dispatcher.celery.queue import app_facts
from dispatcher.errors import InvalidSettings, QueueUnavailable, kind_of, quoted
from dispatcher.settings import Settings


def install(app: Celery, settings: Settings | None = None) -> None:
    """Make the workers and the beat of ``app`` deliver messages, beside their own tasks.

    Call it where the app is made, after its own configuration. It adds the tasks, their queues
    (a worker without ``-Q`` consumes them), their route and the sweep; and the broker, where the
    app names none. It changes no option of the app and opens no connection: each process connects
    when it runs its first task, after the fork. Further calls change nothing.

    ``settings`` default to those of the environment and ``dispatcher.toml``, and apply to the
    tasks, too. Raises InvalidSettings and leaves the app unchanged where an option of the app
    contradicts the dispatcher: another broker, a prefix of its keys, no JSON, a task protocol other
    than 2, a visibility timeout of less than twice the horizon, a queue or an entry of the beat
    schedule with one of our names.
    """
    if not isinstance(app, Celery):
        raise InvalidSettings("app", kind_of(app), "a Celery app")
    settings = settings if settings is not None else Settings.load()
    _add(app, settings)
    remember(app, settings)
    app.steps["worker"].add(WORKER_STEP)

    def again(**_: object) -> None:
        """Install again after the app has read its configuration (``config_from_object``)."""
        _add(app, settings_of(app))

    app.on_after_configure.connect(again, weak=False, dispatch_uid="dispatcher.install")


def _add(app: Celery, settings: Settings) -> None:
    conf: Any = app.conf
    added: dict[str, Any] = {}
    _check_options(conf)
    if conf.broker_url or conf.broker_read_url or conf.broker_write_url:
        _check_broker(app, settings)
    else:
        added["broker_url"] = settings.broker_url
        _check_visibility(conf.broker_transport_options.get("visibility_timeout"), settings)
    imports = (conf.imports,) if isinstance(conf.imports, str) else conf.imports or ()
    our_route = {"dispatcher.*": {"queue": settings.queue}}
    routes = conf.task_routes or []
    routes = routes if isinstance(routes, list | tuple) else [routes]
    added |= {
        "imports": tuple(dict.fromkeys((*imports, TASKS_MODULE))),
        "task_queues": _queues(app, settings),
        "task_routes": [our_route, *(route for route in routes if route != our_route)],
        "beat_schedule": _entries(conf.beat_schedule, settings),
    }
    # With a namespace Celery 5.4 reads CELERY_BEAT_SCHEDULE before beat_schedule.
    prefix = conf.prefix or ""
    theirs = {prefix + (name.upper() if prefix.isupper() else name): name for name in added}
    conf.update(added | {key: added[name] for key, name in theirs.items()})
    vars(app).pop("amqp", None)  # it was made from the options before


def _check_broker(app: Celery, settings: Settings) -> None:
    try:
        facts = app_facts(app, settings)
    except QueueUnavailable as error:
        problem = f"kombu cannot read it, or the app's ({type(error.__cause__).__name__})"
        raise InvalidSettings("broker_url", problem, "URLs that kombu knows") from error
    if not facts.has_our_broker:
        url = urlsplit(settings.broker_url)
        shown = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
        raise InvalidSettings(
            "broker_url",
            f"{shown} is not the broker of the Celery app",
            "the one that the app's workers listen to: set broker_url in dispatcher.toml, or "
            "DISPATCHER_BROKER_URL, to that of the app",
        )
    if facts.redelivery is not None:
        _check_visibility(facts.redelivery.total_seconds(), settings)


def _check_visibility(seconds: float | None, settings: Settings) -> None:
    if seconds is not None and timedelta(seconds=seconds) <= 2 * settings.horizon:
        raise InvalidSettings(
            "horizon",
            f"{settings.horizon} is too long for the app's visibility_timeout of {seconds} s",
            "below half of broker_transport_options['visibility_timeout'], or tasks run twice",
        )


def _check_options(conf: Any) -> None:
    if prefix := (conf.broker_transport_options or {}).get("global_keyprefix"):
        raise InvalidSettings(
            "broker_transport_options",
            f"the Celery app reads its queues under the global_keyprefix {quoted(prefix)}",
            "none; the dispatcher publishes without one, and another database keeps apps apart",
        )
    accepted = conf.accept_content
    if not {"json", "application/json"} & {*accepted}:
        raise InvalidSettings(
            "accept_content",
            f"the Celery app accepts {', '.join(map(str, accepted)) or 'nothing'}",
            "['json'], which the dispatcher's tasks are written in",
        )
    if conf.task_protocol != 2:  # noqa: PLR2004 - Celery's own number of it
        raise InvalidSettings(
            "task_protocol",
            f"the Celery app publishes tasks by protocol {quoted(conf.task_protocol)}",
            "2, Celery's default: `dispatcher worker` deletes items of any other",
        )


def _queues(app: Celery, settings: Settings) -> list[Queue]:
    theirs = dict(app.amqp.Queues(app.conf.task_queues))
    ours = {queue.name: queue for queue in queues(settings, exchange=Exchange(settings.queue))}
    for queue in ours.values():
        # Else Celery takes the key of the app's default queue, which would then get our tasks.
        queue.routing_key = queue.name
    for name in theirs.keys() & ours.keys():
        if theirs[name] != ours[name]:
            raise InvalidSettings(
                "queue",
                f"the Celery app has a queue {quoted(name)} of its own",
                f"a queue of another name: its channels' are named {settings.queue}.<channel>",
            )
    return [*(theirs | ours).values()]


def _entries(schedule: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    ours = beat_schedule(settings)
    for name in schedule.keys() & ours.keys():
        if schedule[name] != ours[name]:
            raise InvalidSettings(
                "beat_schedule",
                f"the Celery app has an entry {quoted(name)} of its own",
                "an entry of another name; ours is added by dispatcher.install",
            )
    return {**schedule, **ours}
