"""Every bad setting is refused by name, and no secret gets out."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import ChannelSettings
from dispatcher.errors import InvalidSettings
from dispatcher.quota import CalendarLimit, Limit, Quota
from dispatcher.settings import Settings, embedded_socket

SECRET = "hunter2"  # noqa: S105 - looked for in texts


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("DISPATCHER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def channel(**options: Any) -> dict[str, Any]:
    return {"sms": {"transport": "file"} | options}


def test_the_defaults_are_the_embedded_environment(tmp_path: Path) -> None:
    settings = Settings.load()
    assert settings.database_url == f"sqlite:///{tmp_path.resolve() / '.dispatcher/dispatcher.db'}"
    assert settings.redis_url.startswith("unix://")
    assert settings.broker_url.startswith("redis+socket://")
    assert [str(quota) for quota in settings.quotas] == ["1/minute", "5/hour", "10/day"]
    assert set(settings.channels) == {"console", "file", "memory"}
    assert not list(tmp_path.iterdir()), "loading settings makes no files"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("DISPATCHER_QUOTA", "DISPATCHER_QUOTAS"),
        ("DISPATCHER_DATABSE_URL", "DISPATCHER_DATABASE_URL"),
        ("DISPATCHER_CHANNEL__SMS__TRANSPORT", "DISPATCHER_CHANNELS"),
    ],
)
def test_a_variable_that_is_almost_a_setting_is_refused(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1/minute")
    with pytest.raises(InvalidSettings) as refused:
        Settings.load()
    assert (refused.value.field, refused.value.accepted) == (variable, meant)


@pytest.mark.parametrize("name", ["PORT", "SERVICE_HOST", "PORT_6379_TCP_ADDR", "FAULTS", "REDIS"])
def test_variables_of_others_with_our_prefix_are_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"DISPATCHER_{name}", "tcp://10.0.0.1:6379")
    Settings.load()


def reported_by(status: dict[str, Any] | None) -> dict[str, Any]:
    """Return settings whose status webhooks leave by a channel like this."""
    webhook = {} if status is None else {"status": {"transport": "webhook"} | status}
    return {"channels": channel() | webhook, "status_channel": "status"}


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("quota: there is no such setting; accepted: quotas", {"quota": "1/minute"}),
        ("channels.sms.tranport: there is no such setting; accepted: transport",
         {"channels": {"sms": {"tranport": "file"}}}),
        ("channels.sms.transport: is missing; accepted: a value: it has no default",
         {"channels": {"sms": {}}}),
        ("scopes.tenant.nonsense: there is no such setting; accepted: one of quotas",
         {"scopes": {"tenant": {"nonsense": 1}}}),
        ("quotas: is no list; accepted: a list;", {"quotas": 5}),
        ("channels.sms.fair_by: there is no kind 'tenants'; accepted: recipient, campaign, tenant",
         {"scopes": {"tenant": {"quotas": "1/day"}}, "channels": channel(fair_by="tenants")}),
        ("channels.sms.weights.acme: is out of range; accepted: at least 0.01",
         {"channels": channel(fair_by="campaign", weights={"acme": 0})}),
        ("channels.sms.weights.acme: is out of range; accepted: at most 1000",
         {"channels": channel(fair_by="campaign", weights={"acme": 1_001})}),
        ("channels.sms.weights: weigh nothing without fair_by; accepted: fair_by beside them",
         {"channels": channel(weights={"acme": 2})}),
        ("horizon: is out of range; accepted: more than 0 seconds", {"horizon": -1}),
        ("shards: is out of range; accepted: at least 1", {"shards": 0}),
        ("shards: is no whole number; accepted: a whole number", {"shards": "x"}),
        ("log_format: is not an accepted value; accepted: 'console'", {"log_format": "xml"}),
        ("redis_url: is no text; accepted: a text", {"redis_url": 5}),
        ("database_url", {"database_url": {"url": SECRET}}),
        ("channels: is no table; accepted: a table", {"channels": []}),
        ("channels.sms.options", {"channels": channel(options=SECRET)}),
        ("channels.sms.token", {"channels": channel(token=SECRET)}),
        ("shards", {"redis_url": f"redis://u:{SECRET}@h/0", "shards": 0}),
        ("horizon: is no length; accepted: seconds, or a number and a unit", {"horizon": None}),
        # channels of the status webhooks that could tell nobody
        *(
            ("status_channel: 'status' cannot carry status webhooks;", reported_by(status))
            for status in (
                None,
                {"transport": "memory", "options": {"payload": "body"}},
                {"options": {"payload": "message"}},
                {"options": {"payload": "body", "url": "https://a.example"}},
                {"options": {"payload": "body"}, "catch_up": "expire"},
            )
        ),
        # a retention that is too short for the longest rule
        ("retention: is too short for 10/3 day of quotas;",
         {"retention": "2 days", "quotas": ["1/minute", "10/3 day"]}),
        ("retention: is too short for 9/week of channels.sms.quotas;",
         {"retention": "2 days", "channels": channel(quotas=["5/1 day", "9/week"])}),
        ("retention: is too short for 9/day in UTC of channels.sms.recipient_quotas;",
         {"retention": "2 days", "channels": channel(recipient_quotas=["9/day in UTC"])}),
        ("retention: is too short for 9/month in UTC of channels.sms.limits;",
         {"retention": "2 days", "channels": channel(limits=["9/month in UTC"])}),
        ("retention: is too short for 7/2 day of scopes.tenant.quotas;",
         {"retention": "2 days", "scopes": {"tenant": {"quotas": ["7/2 day"]}}}),
        ("namespace", {"namespace": "a b"}),
        ("queue", {"queue": "a b"}),
        *(
            ("table_prefix", {"table_prefix": prefix})
            for prefix in ("", "a" * 21, "1_", "Crm_", "c-", "ä_", 'a"', "a ")
        ),
        *(
            ("table_schema", {"table_schema": schema, "database_url": f"postgresql://{SECRET}@h"})
            for schema in ("a" * 64, "Crm", "crm.sub", 'crm"')
        ),
        *(
            ("table_schema", {"table_schema": "crm", "database_url": f"{url}://{SECRET}@h/d"})
            for url in ("sqlite", "mysql", "mariadb+pymysql")
        ),
        ("horizon", {"horizon": "soon"}),
        ("horizon", {"horizon": float("nan")}),
        ("retention", {"retention": "99999999999999999 days"}),
        ("body_max_bytes", {"body_max_bytes": 1}),
        ("body_max_depth", {"body_max_depth": 0}),
        ("log_key", {"log_key": "x" * 15}),
        ("quotas.0", {"quotas": "2/fortnight"}),
        ("quotas.1", {"quotas": ["1/minute", "0/hour"]}),
        ("channels", {"channels": {"SMS": {"transport": "file"}}}),
        ("channels.sms.max_attempts", {"channels": channel(max_attempts=0)}),
        ("channels.sms.quiet_hours", {"channels": channel(quiet_hours="00:00-24:00")}),
        ("channels.sms.limits.0", {"channels": channel(limits=["5/day in local"])}),
        ("channels.sms.limits.1", {"channels": channel(limits=["5/second", "5/month"])}),
        ("channels.sms.on_unknown", {"channels": channel(on_unknown="drop")}),
        ("channels.sms.catch_up", {"channels": channel(catch_up="resend")}),
        ("max_horizon", {"max_horizon": 0}),
        ("channels.sms.transport", {"channels": {"sms": {"transport": ""}}}),
        ("channels.sms.expire_after", {"channels": channel(expire_after=0)}),
        # settings that contradict each other
        ("transport_timeout", {"transport_timeout": 30, "claim_ttl": 30}),
        ("transport_timeout", {"transport_timeout": 28.1, "claim_ttl": 30}),
        ("sweep_interval", {"sweep_interval": 30, "horizon": 30}),
        ("horizon", {"horizon": 60, "redelivery_timeout": 120}),
        ("settle", {"settle": 60, "reconcile_grace": 60}),
        ("settle", {"transaction_grace": 1}),
        ("enqueue_grace", {"enqueue_grace": 300, "overdue_after": 300}),
        ("retention", {"retention": "25 hours"}),
        ("channels", {"channels": {}, "default_channels": False}),
        ("quotas", {"quotas": []}),
        ("quotas", {"quotas": ["1/11 day"], "max_horizon": "10 days"}),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused_by_name_in_one_sentence(
    said: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(**settings)
    field, _, sentence = said.partition(": ")
    assert refused.value.field == field
    assert sentence in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None, "the cause would show the input in a traceback"


def test_settings_just_inside_their_rules_are_taken() -> None:
    Settings.load(
        transport_timeout=28, claim_ttl=30, horizon=59.9, redelivery_timeout=120,
        settle=0.1, reconcile_grace=0.2, sweep_interval=0.1, retention="26 hours",
        enqueue_grace=1, overdue_after=1.1,
        table_schema="crm", table_prefix="a" * 20, database_url="postgresql+psycopg://h/d",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (20, timedelta(seconds=20)),
        (0.5, timedelta(seconds=0.5)),
        ("20", timedelta(seconds=20)),
        ("20.5", timedelta(seconds=20.5)),
        ("20 seconds", timedelta(seconds=20)),
        ("0.5 minute", timedelta(seconds=30)),
        (timedelta(seconds=7), timedelta(seconds=7)),
    ],
)
def test_a_length_is_seconds_or_a_number_and_a_unit(value: object, length: timedelta) -> None:
    assert Settings.load(horizon=value, sweep_interval=0.1).horizon == length


def test_arguments_win_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dispatcher.toml").write_text(
        'namespace = "file"\nqueue = "file"\nshards = 3\nquotas = ["2/minute"]\n'
        '[channels.sms]\ntransport = "file"\nlimits = ["5/second", "9/day in Asia/Tokyo"]\n'
    )
    monkeypatch.setenv("DISPATCHER_NAMESPACE", "environment")
    monkeypatch.setenv("DISPATCHER_QUEUE", "environment")
    settings = Settings.load(namespace="argument")
    assert (settings.namespace, settings.queue) == ("argument", "environment")
    assert settings.shards == 3
    assert settings.quotas == (Quota(2, 60_000),)
    limits = (Limit(5, 1_000), CalendarLimit(9, "day", "Asia/Tokyo"))
    assert settings.channels["sms"].limits == limits


FILE = '[channels.sms]\ntransport = "file"\nsenders = 3\n[channels.email]\ntransport = "file"\n'


def test_given_channels_replace_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "dispatcher.toml").write_text(f"shards = 3\n{FILE}")
    settings = Settings.load(channels={"sms": {"transport": "memory"}}, default_channels=False)
    assert settings.channels == {"sms": ChannelSettings(transport="memory")}
    assert settings.shards == 3
    kept = Settings.load(channels=Settings.load().channels | channel(senders=5)).channels
    assert (kept["sms"].senders, kept["email"].transport) == (5, "file")


def test_a_variable_of_all_channels_replaces_them_and_one_of_a_field_reaches_into_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a parent process gives its children is all they know."""
    (tmp_path / "dispatcher.toml").write_text(FILE)
    monkeypatch.setenv("DISPATCHER_CHANNELS__SMS__TRANSPORT", "memory")
    assert Settings.load().channels["sms"] == ChannelSettings(transport="memory", senders=3)
    monkeypatch.delenv("DISPATCHER_CHANNELS__SMS__TRANSPORT")
    monkeypatch.setenv("DISPATCHER_CHANNELS", '{"fax": {"transport": "memory"}}')
    assert Settings.load(default_channels=False).channels.keys() == {"fax"}


def test_lists_of_a_channel_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_CHANNELS__SMS__TRANSPORT", "memory")
    monkeypatch.setenv("DISPATCHER_CHANNELS__SMS__QUOTAS", "[]")
    monkeypatch.setenv("DISPATCHER_CHANNELS__SMS__LIMITS", "10/second,100/minute")
    monkeypatch.setenv("DISPATCHER_QUOTAS", "1/minute, 5/hour")
    assert Settings.load().quotas == (Quota(1, 60_000), Quota(5, 3_600_000))
    channel = Settings.load().channels["sms"]
    assert channel.without_quotas == "always"
    assert channel.limits == (Limit(10, 1_000), Limit(100, 60_000))
    monkeypatch.setenv("DISPATCHER_CHANNELS__SMS__RECIPIENT_QUOTAS", "1/day")
    with pytest.raises(InvalidSettings, match="cannot stand beside"):
        Settings.load()


def test_the_file_is_read_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISPATCHER_CONFIG", str(tmp_path / "other.toml"))
    with pytest.raises(InvalidSettings, match="there is no file"):
        Settings.load()
    (tmp_path / "other.toml").write_text('namespace = "other"\n')
    assert Settings.load().namespace == "other"


@pytest.mark.parametrize("text", ["a = [", "nonsense = 1", "quotas = 5", "\xff\xfe"])
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dispatcher.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSettings):
        Settings.load()


@pytest.mark.parametrize("name", ["CHANNELS", "QUOTAS", "SHARDS"])
def test_an_environment_variable_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"DISPATCHER_{name}", "[bad")
    with pytest.raises(InvalidSettings) as refused:
        Settings.load()
    assert refused.value.field.startswith(name.lower())


def test_another_process_loads_the_same_settings_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings.load(
        namespace="n", redis_url="redis://h/1", database_url="postgresql://h/d", shards=3,
        quotas=["2/30 second", "7/week"], horizon=12.5, data_dir=tmp_path / "data",
        channels=channel(options={"path": "a b"}, limits=["5/second"], backoff_base=1.5,
                         on_unknown="hold", expire_after="2 hours", catch_up="expire"),
    )  # fmt: skip
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings


def test_no_secret_is_shown() -> None:
    settings = Settings.load(
        redis_url=f"redis://u:{SECRET}@h/0",
        database_url=f"postgresql://u:{SECRET}@h/d",
        broker_url=f"amqp://u:{SECRET}@h",
        channels=channel(options={"token": SECRET}),
    )
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)


def test_the_embedded_socket_fits_into_a_socket_address(tmp_path: Path) -> None:
    assert embedded_socket(tmp_path / "d") == tmp_path.resolve() / "d" / "redis.sock"
    deep = tmp_path / ("x" * 120)
    assert len(os.fsencode(embedded_socket(deep))) <= 100
    assert embedded_socket(deep) == embedded_socket(deep)
    assert embedded_socket(deep) != embedded_socket(tmp_path / ("y" * 120))
