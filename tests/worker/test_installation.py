"""An app of the user's gets what it needs to deliver, and keeps what it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from celery import Celery, Task
from kombu import Exchange, Queue

from dispatcher import InvalidSettings, Settings, install
from dispatcher.celery.configuration import DUTIES, beat_schedule, settings_of

SETTINGS = Settings.load(
    default_channels=False,
    broker_url="redis://broker/0",
    channels={"sms": {"transport": "memory"}},
    queue="post",
)
OURS = ["post", "post.sms"]


def shop(**options: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update({"broker_url": SETTINGS.broker_url} | options)
    return app


def queues(app: Celery) -> list[str]:
    """Return what a worker without ``-Q`` takes tasks from."""
    return [*app.amqp.queues.consume_from]


def has_both(app: Celery) -> None:
    assert app.conf.imports == ("shop.tasks", "dispatcher.celery.tasks")
    assert set(app.conf.beat_schedule) == {"tidy", *beat_schedule(SETTINGS)}
    assert queues(app) == ["shop", *OURS]
    for task, queue in {"dispatcher.deliver": "post", "shop.tidy": "shop"}.items():
        assert app.amqp.router.route({}, task)["queue"].name == queue


def test_an_app_gets_tasks_queues_route_and_sweep_and_keeps_its_own() -> None:
    app = shop(
        imports=("shop.tasks",),
        task_routes={"shop.*": {"queue": "shop"}},
        beat_schedule={"tidy": {"task": "shop.tidy", "schedule": 60}},
        task_queues=[Queue("shop", Exchange("shop"), "shop")],
        task_time_limit=5,
        task_default_rate_limit="1/m",
        task_serializer="yaml",
    )
    install(app, SETTINGS)
    has_both(app)
    assert app.conf.task_time_limit == 5
    assert settings_of(app) is SETTINGS


def test_options_of_a_namespace_are_kept_beside_ours() -> None:
    """Without the mend it fails on Celery 5.4 alone, which `make test-lowest` runs it with."""

    class Project:
        CELERY_BROKER_URL = SETTINGS.broker_url
        CELERY_IMPORTS = ("shop.tasks",)
        CELERY_TASK_ROUTES: ClassVar = {"shop.*": {"queue": "shop"}}
        CELERY_TASK_QUEUES = (Queue("shop", Exchange("shop"), "shop"),)
        CELERY_BEAT_SCHEDULE: ClassVar = {"tidy": {"task": "shop.tidy", "schedule": 60}}

    app = Celery("shop", set_as_current=False)
    app.config_from_object(Project, namespace="CELERY")
    install(app, SETTINGS)
    has_both(app)


def test_a_worker_without_a_list_of_queues_takes_its_default_one_and_ours() -> None:
    app = shop(task_default_queue="all")
    install(app, SETTINGS)
    assert queues(app) == ["all", *OURS]
    theirs, ours = app.amqp.queues["all"], app.amqp.queues["post.sms"]
    assert (theirs.exchange.name, theirs.routing_key) == ("all", "all")
    assert (ours.exchange.name, ours.routing_key) == ("post", "post.sms")


def test_an_app_without_a_broker_gets_ours() -> None:
    app = Celery("shop", set_as_current=False)
    install(app, SETTINGS)
    assert app.conf.broker_url == SETTINGS.broker_url


def test_installed_again_nothing_is_there_twice() -> None:
    app = shop()
    install(app, SETTINGS)
    once = {name: app.conf[name] for name in ("imports", "task_routes", "beat_schedule")}
    install(app, SETTINGS)
    assert {name: app.conf[name] for name in once} == once
    assert queues(app) == ["celery", *OURS]


def test_later_configuration_of_the_app_keeps_the_tasks() -> None:
    app = shop()
    install(app, SETTINGS)
    later = {"broker_url": SETTINGS.broker_url, "task_routes": {"shop.*": {"queue": "shop"}}}
    app.config_from_object(later)
    assert "dispatcher.celery.tasks" in app.conf.imports
    assert queues(app) == ["celery", *OURS]
    assert app.amqp.router.route({}, "dispatcher.prune")["queue"].name == "post"
    assert app.amqp.router.route({}, "shop.tidy")["queue"].name == "shop"


class InContext(Task):  # type: ignore[type-arg]  # not generic in Celery 5.4
    """A task of an app whose tasks have something around them, as Flask's documentation has it."""


def test_the_options_of_an_app_do_not_bend_our_tasks() -> None:
    app = shop(
        task_time_limit=5, task_soft_time_limit=4, task_default_rate_limit="1/m",
        task_acks_late=True, task_ignore_result=False, task_serializer="pickle",
        task_annotations={"*": {"time_limit": 6, "soft_time_limit": 5, "rate_limit": "2/m"}},
    )  # fmt: skip
    app.task_cls = f"{__name__}:InContext"
    install(app, SETTINGS)
    app.loader.import_default_modules()
    for name in ("deliver", *DUTIES):
        task: Any = app.tasks[f"dispatcher.{name}"]
        assert min(task.time_limit, task.soft_time_limit) > 3600
        assert not task.rate_limit
        assert isinstance(task, InContext), "transports may need what the app's tasks have"
        assert (task.acks_late, task.ignore_result, task.serializer) == (False, True, "json")


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (lambda conf: conf.update(broker_url="redis://other/0"), "broker_url", "not the broker"),
        (lambda conf: conf.update(broker_read_url="redis://b/"), "broker_url", "not the broker"),
        (lambda conf: conf.update(accept_content=["pickle"]), "accept_content", "pickle"),
        (lambda conf: conf.update(task_protocol=1), "task_protocol", "protocol 1"),
        (
            lambda conf: conf.update(broker_transport_options={"visibility_timeout": 60}),
            "horizon", "visibility_timeout of 60",
        ),
        (
            lambda conf: conf.update(broker_transport_options={"global_keyprefix": "shop:"}),
            "broker_transport_options", "global_keyprefix 'shop:'",
        ),
        (
            lambda conf: conf.update(task_queues=[Queue("post.sms", Exchange("shop"), "sms")]),
            "queue", "'post.sms'",
        ),
        (
            lambda conf: conf.update(beat_schedule={"dispatcher.prune": {"task": "shop.prune"}}),
            "beat_schedule", "'dispatcher.prune'",
        ),
    ],
    ids=["broker", "read", "content", "protocol", "visibility", "prefix", "queue", "entry"],
)  # fmt: skip
def test_a_conflicting_configuration_is_named_and_the_app_is_unchanged(
    change: Callable[[Any], None], field: str, problem: str
) -> None:
    app = shop()
    change(app.conf)
    before = dict(app.conf)
    with pytest.raises(InvalidSettings, match=problem) as refused:
        install(app, SETTINGS)
    assert refused.value.field == field
    assert dict(app.conf) == before
    assert settings_of(app) is not SETTINGS


def test_another_broker_is_named_without_its_password() -> None:
    settings = SETTINGS.model_copy(update={"broker_url": "redis://ada:hunter2@ours.example/3"})
    with pytest.raises(InvalidSettings) as refused:
        install(shop(broker_url="redis://:swordfish@other/0"), settings)
    assert "swordfish" not in str(refused.value)
    assert "redis://ours.example/3 is not the broker" in refused.value.problem
    assert "DISPATCHER_BROKER_URL" in refused.value.accepted
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:6379/1?nonsense=1", "foo://x"])
def test_a_broker_that_kombu_does_not_know_is_said(url: str) -> None:
    app = Celery("theirs", broker=url, set_as_current=False)
    with pytest.raises(InvalidSettings, match="broker_url: kombu cannot read it, or the app's"):
        install(app, Settings())
    assert app.conf.beat_schedule == {}
