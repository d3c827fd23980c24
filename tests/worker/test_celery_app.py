"""Celery is configured in exactly one way: its queues, what it takes, and its schedule."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher import Settings, celery_app
from dispatcher.celery.configuration import DUTIES, beat_schedule, create_app, options

REDIS = Settings.load(broker_url="redis://broker/0")
CATCHING_UP = Settings.load(
    channels={"sms": {"transport": "memory", "catch_up": "expire"}}, broker_url="redis://broker/0"
)
TELLING = Settings.load(
    channels={"status": {"transport": "webhook", "options": {"payload": "body"}}},
    status_channel="status",
    broker_url="redis://broker/0",
)
RABBIT = Settings.load(broker_url="amqp://broker//")


def test_queues_of_rabbitmq_are_quorum_queues_unless_asked_for_otherwise() -> None:
    quorum = options(Settings.load(broker_url="amqp://broker//"))
    assert {str(queue.queue_arguments) for queue in quorum["task_queues"]} == {
        "{'x-queue-type': 'quorum'}"
    }
    assert quorum["worker_prefetch_multiplier"] == 64, "their bound does not grow"
    for others in ({"broker_url": "amqp://broker//", "queue_type": "classic"}, {}):
        found = options(Settings.load(**others))
        assert {queue.queue_arguments for queue in found["task_queues"]} == {None}
        assert found["worker_prefetch_multiplier"] == 1


def test_a_submitting_app_gives_up_within_a_second() -> None:
    transport = create_app(REDIS, submitting=True).conf.broker_transport_options
    assert transport["socket_timeout"] + transport["socket_connect_timeout"] <= 1.0
    assert transport["max_retries"] == 1
    assert create_app(RABBIT, submitting=True).conf.broker_connection_timeout < 1.0


def test_only_json_is_taken_and_the_sweep_and_each_channel_have_a_queue() -> None:
    conf = create_app(REDIS).conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == conf.event_serializer == conf.result_serializer == "json"
    names = [queue.name for queue in options(REDIS)["task_queues"]]
    assert names == ["dispatcher", "dispatcher.console", "dispatcher.file", "dispatcher.memory"]


def test_the_sweep_is_all_of_its_duties_each_expiring_after_ten_ticks() -> None:
    schedule = beat_schedule(CATCHING_UP) | beat_schedule(TELLING)
    assert set(schedule) == {f"dispatcher.{name}" for name in DUTIES}
    needed = beat_schedule(REDIS).keys()
    assert beat_schedule(CATCHING_UP).keys() - needed == {"dispatcher.catch_up"}
    assert beat_schedule(TELLING).keys() - needed == {"dispatcher.notify"}
    for name, entry in schedule.items():
        duty = DUTIES[name.removeprefix("dispatcher.")]
        every = duty.every(CATCHING_UP)
        assert (entry["task"], entry["schedule"]) == (name, every)
        assert entry["options"]["expires"] == 10 * every.total_seconds()
        assert entry["options"]["queue"] == "dispatcher"
    often = beat_schedule(Settings.load(sweep_interval=0.2, queue="other"))
    assert often["dispatcher.rescue"]["schedule"] == timedelta(milliseconds=200)
    assert often["dispatcher.rescue"]["options"] == {
        "expires": 10.0, "queue": "other", "argsrepr": "", "kwargsrepr": "",
    }  # fmt: skip


def test_the_module_has_an_app_made_when_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(celery_app, "app", raising=False)
    monkeypatch.setenv("DISPATCHER_QUEUE", "from-the-environment")
    app = celery_app.app
    assert app.conf.task_default_queue == "from-the-environment"
    assert celery_app.app is app
    with pytest.raises(AttributeError):
        _ = celery_app.nothing
    monkeypatch.delattr(celery_app, "app")
