"""Every setting with its unit, its default, and the rules that tie settings to each other.

Read from the environment (``DISPATCHER_HORIZON=20``, ``DISPATCHER_CHANNELS__SMS__TRANSPORT=file``),
then from ``dispatcher.toml`` in the working directory (another file: ``DISPATCHER_CONFIG``), then
the defaults below, which are those of the embedded environment in ``.dispatcher/``.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import parse_qsl, quote, urlencode

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from dispatcher import scope
from dispatcher.body_types import BodyTypes, first_of
from dispatcher.channel import (
    AnyLimit,
    AnyQuota,
    ChannelSettings,
    Length,
    Quotas,
    ScopeKind,
    Spellings,
    check_name,
    split,
)
from dispatcher.errors import InvalidSettings, InvalidValue, quoted
from dispatcher.quota import Quota
from dispatcher.times import zones

PREFIX = "DISPATCHER_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
PARENT_VARIABLE = f"{PREFIX}EMBEDDED_PARENT"
RESERVED_KINDS = ("channel", "recipient", "campaign", "event", scope.WITHOUT)
"""Names that no kind of the settings may have, because a message has them already."""
_NEVER_FULL = (Quota(10_000_000, 1_000),)
"""The quota of messages without quotas: their reservation is kept, and refuses nothing."""
TABLE_PREFIX = "dispatcher_"
_EMBEDDED_BROKER_DB = 1
PRIVATE_UMASK = 0o077
_FOLDER, _OTHERS = 0o700, 0o007
_CLAIM_SPARE = timedelta(seconds=2)
_RECORD_SPARE = timedelta(seconds=10)
"""Time to record the sends, to put the other messages back, and to close."""
_CLUSTER_SHARDS = 64
_FARTHEST = timedelta(days=366 * 1_000)  # Redis scripts count milliseconds in 14 digits
_SHORTEST_KEY = 16
LogFormat = Literal["console", "json"]
_FORM_OF_REPLIES = re.compile(r"decode_responses|encoding(_errors)?|legacy_responses|protocol")
_REDIS_OPTION = re.compile(
    r"db|(sentinel_)?(username|password)|client_name|lib_(name|version)|ssl_\w+|max_connections|"
    r"health_check_interval|retry_on_timeout|socket_(timeout|connect_timeout|keepalive|read_size)"
)
_LONGEST_SOCKET_PATH = 100  # sun_path holds 108 bytes on Linux, 104 on macOS
_ALIKE = 0.85
_RATHER_ALIKE = 0.7
_NAMES_OF_A_TABLE = 2  # channels.sms
_NO_SUCH = "there is no such setting"
_LENGTH = "seconds, or a number and a unit, such as '30 days'"
_SENTENCES = {
    "missing": ("is missing", "a value: it has no default"),
    "missing_keyword_only_argument": ("is missing", "a value: it has no default"),
    "string_type": ("is no text", "a text"),
    "bool_type": ("is neither true nor false", "true or false"),
    "bool_parsing": ("is neither true nor false", "true or false"),
    "int_type": ("is no whole number", "a whole number"),
    "int_parsing": ("is no whole number", "a whole number"),
    "int_from_float": ("is no whole number", "a whole number"),
    "float_type": ("is no number", "a number"),
    "float_parsing": ("is no number", "a number"),
    "finite_number": ("is no finite number", "a finite number"),
    "time_delta_type": ("is no length", _LENGTH),
    "time_delta_parsing": ("is no length", _LENGTH),
    "path_type": ("is no path", "a path"),
    "tuple_type": ("is no list", "a list; in an environment variable, with commas between"),
    "dict_type": ("is no table", "a table"),
    "model_type": ("is no table", "a table"),
    "literal_error": ("is not an accepted value", "{expected}"),
    "enum": ("is not an accepted value", "{expected}"),
    "list_type": ("is no list", "a list"),
    "string_unicode": ("has characters that are no text", "a text"),
    "int_parsing_size": ("is out of range", "a number of fewer digits"),
    "too_long": ("has too many entries", "at most {max_length}"),
    "too_short": ("has too few entries", "at least {min_length}"),
    "string_pattern_mismatch": ("is not of the accepted form", "a text that matches {pattern}"),
    "greater_than": ("is out of range", "more than {gt}"),
    "greater_than_equal": ("is out of range", "at least {ge}"),
    "less_than": ("is out of range", "less than {lt}"),
    "less_than_equal": ("is out of range", "at most {le}"),
}


def _read_redis_url(url: str) -> str:
    """Take over the options that a URL has for other clients. Raises InvalidSettings."""
    options = []
    for name, value in _options_of(url):
        if _FORM_OF_REPLIES.fullmatch(name):  # meant for another program that has the same URL
            continue
        if not _REDIS_OPTION.fullmatch(name):
            problem = f"its option {quoted(name)} is not supported"
            raise InvalidSettings("redis_url", problem, "a URL without it")
        # Celery writes CERT_NONE
        is_enum = name == "ssl_cert_reqs"
        options.append((name, value.lower().removeprefix("cert_") if is_enum else value))
    return _with_options(url, options)


def _options_of(url: str) -> list[tuple[str, str]]:
    return parse_qsl(url.partition("?")[2])


def _with_options(url: str, options: list[tuple[str, str]]) -> str:
    return "?".join(filter(None, [url.partition("?")[0], urlencode(options)]))


class Settings(BaseSettings):
    """The whole configuration: frozen and validated.

    Lengths are seconds, or text such as ``"30 days"``. :meth:`load` raises InvalidSettings.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )
    reads_file: ClassVar[bool] = True
    """Whether the file counts: not in an embedded environment."""

    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "dispatcher"
    """First part of every Redis key."""
    data_dir: Path = Path(".dispatcher")
    """Folder of the embedded environment, of the file transport, and of the send logs, which tell
    which messages a killed worker had not begun to send. It must outlive the process."""
    redis_url: Annotated[str, AfterValidator(_read_redis_url)] = Field(
        default_factory=lambda data: embedded_addresses(data["data_dir"])["redis_url"], repr=False
    )
    """Redis of the windows and the permits; must run with ``noeviction``.
    One server: ``redis://``, ``rediss://`` or ``unix://``. The master that sentinels name:
    ``redis+sentinel://host:26379,host:26379/master/0``; ``?sentinel_password=`` is theirs. A
    Redis Cluster: ``redis+cluster://host:6379,host:6379``. ``rediss+…`` encrypts."""
    shards: Annotated[int, Field(ge=1, le=1024)] = Field(
        default_factory=lambda data: (
            _CLUSTER_SHARDS if _several(data["redis_url"]) == "cluster" else 1
        )
    )
    """Parts the windows and the permits are split into: 1 on one server, so that one script checks
    all scopes of a message; 64 on a Redis Cluster. After a change the sweep rebuilds them."""
    database_url: str = Field(
        default_factory=lambda data: embedded_addresses(data["data_dir"])["database_url"],
        repr=False,
    )
    """SQLAlchemy URL of the store (SQLite, PostgreSQL or MariaDB)."""
    table_prefix: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,19}$")] = TABLE_PREFIX
    """First part of the name of every table, constraint and index: a-z, 0-9 and _, at most 20.
    Another prefix is another store: rows under the old names stay there."""
    table_schema: Annotated[str, Field(pattern=r"^([a-z_][a-z0-9_]{0,62})?$")] = ""
    """PostgreSQL: the schema of the tables; ``dispatcher migrate`` makes it. Empty: the
    first one of the connection's ``search_path``. SQLite and MariaDB have none."""
    broker_url: str = Field(
        default_factory=lambda data: _default_broker_url(data["redis_url"], data["data_dir"]),
        repr=False,
    )
    """Celery's broker (Redis or RabbitMQ); by default the Redis above, where that is one server."""
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "dispatcher"
    """Celery queue of the sweep. Each channel has its own queue: ``dispatcher.email``."""
    default_channels: bool = True
    """Whether the channels ``console``, ``file`` and ``memory`` exist beside those of ``channels``.
    ``false`` where no message may end in them."""
    channels: dict[str, ChannelSettings] = Field(default_factory=dict)
    """The channels by name: :class:`ChannelSettings`."""
    hooks: Annotated[str, Field(pattern=r"^([\w.]+:\w+)?$")] = ""
    """``package.module:attribute`` of a class or an object with methods for messages' transitions:
    ``on_scheduled``, ``on_rescheduled``, ``on_enqueued``, ``on_snoozed``, ``on_delayed``,
    ``on_sent``, ``on_failed``, ``on_retry``, ``on_held``, ``on_expired``, ``on_cancelled``, each
    called with the message, at most once, after the commit. Empty: no hooks."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split)] = ()
    """The names in ``Host`` by which the HTTP API and the page may be called: ``shop.example``,
    ``*.shop.example``. Others are answered by 400. Empty: any name."""
    events_kept: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """How many of the last transitions Redis keeps for ``GET /v1/events``; 0: none are written."""
    status_channel: str = ""
    """Channel of the status webhooks, which post each final status to the message's ``status_url``:
    a ``webhook`` with ``payload = "body"`` and no ``url``. Empty: ``status_url`` is refused."""
    status_errors: bool = False
    """Whether status webhooks contain ``last_error``: the provider's answer, which may quote the
    recipient, the body and addresses of servers."""
    quotas: Quotas = (Quota(1, 60_000), Quota(5, 3_600_000), Quota(10, 86_400_000))
    """Checked at submit, per scope, on the promised times; enforced again at delivery.
    ``10/day`` counts within any 24 hours, ``10/day in Europe/Berlin`` within calendar days there,
    ``10/day in local`` within those of the zone that a message names."""
    scopes: dict[str, ScopeKind] = Field(default_factory=dict)
    """Kinds of scopes that a message may name besides its own: ``scopes.tenant.quotas``."""
    zone: str = "UTC"
    """Zone of messages that name none."""

    max_horizon: Annotated[Length, Field(le=_FARTHEST)] = timedelta(days=5 * 366)
    """How far ahead a message may be submitted."""
    body_max_bytes: Annotated[int, Field(ge=2, le=16 * 1024 * 1024)] = 64 * 1024
    """Most bytes of a body, as JSON in UTF-8."""
    body_max_depth: Annotated[int, Field(ge=1, le=200)] = 32
    """Most levels of objects and lists in a body."""

    horizon: Length = timedelta(seconds=30)
    """How near its send time must be for a message to be enqueued to Celery."""
    sweep_interval: Length = timedelta(seconds=1)
    """How often beat starts all duties of the sweep but ``prune``."""
    prune_interval: Length = timedelta(minutes=1)
    """How often beat starts ``prune``, which deletes messages past their retention."""
    redelivery_timeout: Length = timedelta(seconds=120)
    """Redis broker: Celery's visibility timeout."""
    queue_type: Literal["quorum", "classic"] = "quorum"
    """RabbitMQ broker: the type of its queues. An existing queue cannot change its type."""
    enqueue_grace: Length = timedelta(seconds=5)
    """How long past its time a message stays unclaimed before it is enqueued again. Then it is
    enqueued again each time this passes; once late by 4 times this, each 8 times; once late by 8
    times, each 16."""
    overdue_after: Length = timedelta(minutes=5)
    """How long past its time an unclaimed message is overdue: see ``catch_up`` of a channel."""
    tell_delay_after: Length | None = None
    """How long a limit may delay a message before that is told, once: by the hook ``on_delayed``
    and the status webhook. Without it no delay is told."""
    group_size: Annotated[int, Field(ge=1, le=1_000)] = 50
    """Most messages in one task."""
    groups_at_once: Annotated[int, Field(ge=1, le=100)] = 4
    """How many tasks of one channel a worker process runs at a time; the others wait."""
    coalesce: Length = timedelta(milliseconds=50)
    """Messages of one channel due within this length share a task."""
    claim_ttl: Length = timedelta(seconds=30)
    """How long the claim of a worker on a message lasts; then the message is rescued."""
    transport_timeout: Length = timedelta(seconds=10)
    """Longest single send; the transports get it as their timeout."""
    reconcile_grace: Length = timedelta(seconds=60)
    """Age at which a reservation that the store has not confirmed is looked up."""
    transaction_grace: Length = timedelta(minutes=10)
    """How much longer a transaction of the caller may stay open after a submit has joined it.
    Until then ``reconcile`` does not release the reservation."""
    settle: Length = timedelta(seconds=1)
    """Longest time between reservation and commit without a second check of the reservation."""
    retention: Length = timedelta(days=30)
    """How long messages are stored after their end."""
    book_ahead: Length = timedelta(days=35)
    """How far ahead the occurrences of series are booked; those of a list in
    ``series_recipients`` at most ``retention``."""
    series_catch_up: Length = timedelta(days=1)
    """How old an occurrence that was not booked in time may be, to count as ``missed``."""
    series_recipients: dict[str, str] = Field(default_factory=dict)
    """Lists of recipients by their names in series: ``package.module:callable``, which yields
    recipients as ``(address, zone, data)`` when occurrences are booked."""

    log_format: LogFormat = "console"
    """Format of the logs of ``dispatcher worker``, ``beat``, ``up`` and ``serve``: text or JSON."""
    log_key: str = Field("", repr=False)
    """Secret of at least 16 characters, the same in every process. With it, log lines have a keyed
    hash of the recipient; without it, nothing of the recipient."""

    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Port of the metrics and the health of a worker or a beat; 0 for any free port.
    Without it no process counts. Needs the extra ``metrics``."""
    metrics_host: str = "127.0.0.1"
    """Address of that port; with ``0.0.0.0`` other machines reach it."""

    traces: bool = False
    """Whether submits and sends have spans of OpenTelemetry. Needs the extra ``traces``."""

    @field_validator("channels")
    @classmethod
    def _keep_defaults(
        cls, channels: dict[str, ChannelSettings], info: ValidationInfo
    ) -> dict[str, ChannelSettings]:
        kept = ("console", "file", "memory") if info.data.get("default_channels") else ()
        return channels | {
            name: ChannelSettings(transport=name) for name in kept if name not in channels
        }

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read environment and file; ``overrides`` win. Raises InvalidSettings.

        Given ``channels`` or ``scopes`` replace all others; ``Settings.load().channels | {…}``
        keeps them. A variable of the environment that is almost the name of a setting is refused.
        """
        _check_variables(cls.model_fields)
        try:
            return cls(**overrides)
        except SettingsError as error:
            named = re.search(r'field "(\w+)"', str(error))
            field = named[1] if named else "settings"
            raise InvalidSettings(field, "cannot be read", "text, or JSON for a list") from None
        except ValidationError as error:
            raise refusal(error, cls.model_fields) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: arguments, environment, file. A table replaces that of later ones."""
        del dotenv_settings, file_secret_settings
        arguments = init_settings()
        others = {name: value for name, value in env_settings().items() if name not in arguments}
        environment = InitSettingsSource(settings_cls, init_kwargs=others)
        if not cls.reads_file:
            return init_settings, environment
        named = os.environ.get(CONFIG_VARIABLE)
        path = config_file()
        if named and not path.is_file():
            raise InvalidSettings(CONFIG_VARIABLE, f"there is no file {named}", "a TOML file")
        try:
            file = TomlConfigSettingsSource(settings_cls, path)
        except (ValueError, OSError) as error:
            raise InvalidSettings(str(path), f"cannot be read ({error})", "a TOML file") from None
        # pydantic would merge the tables, and add channels that nobody asked for to those of a test
        variables = {variable.upper() for variable in os.environ}
        for name in [*file.init_kwargs]:
            if name in arguments or PREFIX + name.upper() in variables:
                del file.init_kwargs[name]
        return init_settings, environment, file

    @cached_property
    def quotas_of(self) -> dict[str, tuple[AnyQuota, ...]]:
        """The quotas of every kind of scope that has some (see :mod:`dispatcher.scope`)."""
        quotas_of: dict[str, tuple[AnyQuota, ...]] = {scope.OWN_SCOPE: self.quotas}
        quotas_of[scope.WITHOUT] = _NEVER_FULL
        for name, channel in self.channels.items():
            quotas_of[scope.of_scope_on(name)] = channel.recipient_quotas
            quotas_of[scope.of_channel(name)] = channel.quotas
            if channel.without_quotas == "always":
                quotas_of[scope.without_on(name)] = _NEVER_FULL
        quotas_of |= {name: kind.quotas for name, kind in self.scopes.items()}
        return {kind: quotas for kind, quotas in quotas_of.items() if quotas}

    @property
    def kinds_with_quotas(self) -> list[str]:
        """The kinds of scopes that have quotas, as people name them."""
        kinds = (kind for kind in self.quotas_of if not kind.startswith(scope.WITHOUT))
        return [kind or scope.OWN_KIND for kind in kinds]

    @cached_property
    def spellings(self) -> Spellings:
        return Spellings(self.channels)

    @cached_property
    def body_types(self) -> BodyTypes:
        return BodyTypes({name: channel.body for name, channel in self.channels.items()})

    @property
    def stop_grace(self) -> timedelta:
        """How long a worker needs to end: for a send, and to record it.

        If a supervisor kills it sooner, the outcome of each send in flight is unknown.
        """
        return self.transport_timeout + _RECORD_SPARE

    @property
    def queues(self) -> tuple[str, ...]:
        """The Celery queues that workers consume."""
        return (self.queue, *(self.queue_of(name) for name in self.channels))

    def queue_of(self, channel: str) -> str:
        """Return the Celery queue of a channel; for an unknown channel the queue of the sweep."""
        return f"{self.queue}.{channel}" if channel in self.channels else self.queue

    def share_of(
        self, channel: str, scope: str, scopes: Mapping[str, str] | None, campaign: str | None
    ) -> str:
        """Return whose share a message with these uses, as tickets and permits have it."""
        settings = self.channels.get(channel)
        if settings is None or not settings.fair_by:
            return ""
        values = {"recipient": scope, "campaign": campaign or ""} | {**(scopes or {})}
        return settings.share(values.get(settings.fair_by, ""))

    @property
    def expiring_channels(self) -> tuple[str, ...]:
        return tuple(
            name for name, channel in self.channels.items() if channel.catch_up == "expire"
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields replaced, which are not validated."""
        copy = super().model_copy(update=update, deep=deep)
        for made in ("quotas_of", "spellings", "body_types"):
            vars(copy).pop(made, None)
        return copy

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make another process load these settings."""
        dumped = self.model_dump(mode="json")
        return {
            PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in dumped.items()
            if value is not None
        }

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        _require(self.channels != {}, "channels", "none", "at least one channel")
        _require(self.quotas != (), "quotas", "none", "at least one quota")
        _require(
            not self.table_schema or re.match(r"postgres(ql)?[+:]", self.database_url) is not None,
            "table_schema", "set, but database_url is not PostgreSQL's",
            "none: SQLite and MariaDB have no schemas; table_prefix tells tables apart",
        )  # fmt: skip
        for name in self.channels:
            check_name("channels", name)
        self._check_status_channel()
        _require(
            not _several(self.broker_url),
            "broker_url", "by default redis_url; Celery takes neither a cluster nor redis+sentinel",
            "the URL of a RabbitMQ (amqp://…), or of a Redis that is one server",
        )  # fmt: skip
        _require(
            self.claim_ttl - self.transport_timeout >= _CLAIM_SPARE,
            "transport_timeout", f"is too long for claim_ttl {self.claim_ttl}",
            f"at least {_CLAIM_SPARE} below claim_ttl, for what a worker does before it sends",
        )  # fmt: skip
        self._in_order("sweep_interval", "horizon")
        _require(
            self.horizon < self.redelivery_timeout / 2,
            "horizon", f"{self.horizon} is not below half of redelivery_timeout",
            "a horizon below half of redelivery_timeout, or tasks run twice",
        )  # fmt: skip
        _require(
            not self.log_key or len(self.log_key) >= _SHORTEST_KEY,
            "log_key", "is too short", f"a secret of at least {_SHORTEST_KEY} characters",
        )  # fmt: skip
        self._in_order("enqueue_grace", "overdue_after")
        self._in_order("settle", "reconcile_grace")
        self._in_order("settle", "transaction_grace")
        for kind in self.scopes:
            check_name("scopes", kind)
            _require(
                kind not in RESERVED_KINDS, "scopes", f"the name {quoted(kind)}",
                f"another one than {', '.join(RESERVED_KINDS)}, which every message has",
            )  # fmt: skip
        zones.rules(self.zone)
        self.check_rules("quotas", self.quotas)
        for name, channel in self.channels.items():
            self.check_rules(f"channels.{name}.quotas", channel.quotas)
            self.check_rules(f"channels.{name}.recipient_quotas", channel.recipient_quotas)
            self.check_rules(f"channels.{name}.limits", channel.limits)
            kinds = ("", "recipient", "campaign", *self.scopes)
            _require(
                channel.fair_by in kinds, f"channels.{name}.fair_by",
                f"there is no kind {quoted(channel.fair_by)}", ", ".join(filter(None, kinds)),
            )  # fmt: skip
        for kind, scopes in self.scopes.items():
            self.check_rules(f"scopes.{kind}.quotas", scopes.quotas)
        return self

    def check_rules(self, field: str, rules: Iterable[AnyQuota | AnyLimit]) -> None:
        """Raise InvalidSettings for what reaches further than messages are kept or promised."""
        for rule in rules:
            length = timedelta(milliseconds=rule.longest_ms)
            if isinstance(rule, Quota):
                _require(
                    length <= self.max_horizon,
                    field, f"{rule} is longer than max_horizon {self.max_horizon}",
                    "a quota whose length a message can be submitted ahead",
                )  # fmt: skip
            needed = length + timedelta(hours=1)
            _require(
                self.retention > needed,
                "retention", f"{self.retention} is too short for {rule} of {field}",
                f"more than {needed}, or messages that still count would be deleted",
            )  # fmt: skip

    def _check_status_channel(self) -> None:
        channel = self.channels.get(self.status_channel)
        if self.status_channel:
            options = {} if channel is None else channel.options
            _require(
                channel is not None
                and (channel.transport, channel.catch_up) == ("webhook", "send")
                and options.get("payload") == "body"
                and options.get("url") is None,
                "status_channel", f"{quoted(self.status_channel)} cannot carry status webhooks",
                'a channel with transport = "webhook" and options.payload = "body", whose options '
                'have no url, and whose catch_up is "send"',
            )  # fmt: skip

    def _in_order(self, lesser: str, greater: str) -> None:
        low, high = getattr(self, lesser), getattr(self, greater)
        _require(low < high, lesser, f"{low} is too long for {greater} {high}", f"below {greater}")


def config_file() -> Path:
    return Path(os.environ.get(CONFIG_VARIABLE) or "dispatcher.toml")


def embedded_socket(data_dir: Path) -> Path:
    """Return the embedded Redis's socket; for too long a path, in a private temporary folder."""
    folder = data_dir.resolve()
    inside = folder / "redis.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"dispatcher-{getpass.getuser()}-{digest}" / "redis.sock"


def open_to_others(path: Path) -> bool:
    """Whether other users may read or write this file or folder; False where there is none."""
    try:
        file = path.resolve(strict=True)
        if not file.stat().st_mode & _OTHERS:
            return False
        return all(folder.stat().st_mode & 0o001 for folder in file.parents)
    except OSError:
        return False


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, each for its owner alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=_FOLDER, exist_ok=True)


def embedded_addresses(data_dir: Path) -> dict[str, str]:
    socket = quote(str(embedded_socket(data_dir)))
    return {
        "redis_url": f"unix://{socket}",
        "database_url": f"sqlite:///{data_dir.resolve() / 'dispatcher.db'}",
        "broker_url": f"redis+socket://{socket}?virtual_host={_EMBEDDED_BROKER_DB}",
    }


def _several(url: str) -> str:
    """Return ``cluster`` or ``sentinel`` where a URL leads to one, else empty."""
    match = re.match(r"rediss?\+(cluster|sentinel)://", url)
    return match[1] if match else ""


def _require(holds: bool, field: str, problem: str, accepted: str) -> None:
    if not holds:
        raise InvalidSettings(field, problem, accepted)


def _default_broker_url(redis_url: str, data_dir: Path) -> str:
    embedded = embedded_addresses(data_dir)
    if redis_url == embedded["redis_url"]:
        return embedded["broker_url"]
    of_tls = [option for option in _options_of(redis_url) if option[0].startswith("ssl_")]
    return re.sub(r"^unix://", "redis+socket://", _with_options(redis_url, of_tls))


def refusal(error: ValidationError, fields: Collection[str] = ()) -> InvalidSettings:
    """Return the error of the setting or the option that explains most."""
    first = first_of(error)
    path = [str(part) for part in first["loc"]]
    tables = {"channels": ChannelSettings.model_fields, "scopes": ScopeKind.model_fields}
    known = tables.get(path[0], ()) if len(path) > 1 else fields
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        if not path or (len(path) == _NAMES_OF_A_TABLE and cause.field in known):
            path.append(cause.field)
        return InvalidSettings(".".join(path), cause.problem, cause.accepted)
    field = ".".join(path) or "settings"
    if first["type"] != "extra_forbidden":
        return InvalidSettings(field, *sentence_of(first))
    return InvalidSettings(field, _NO_SUCH, like(path[-1], known))


def _check_variables(fields: Collection[str]) -> None:
    """Raise InvalidSettings for a variable whose name is almost that of a setting.

    Other variables with our prefix are ignored: Kubernetes sets some for a service of that name.
    """
    for variable in os.environ:
        name = variable.removeprefix(PREFIX).split("__")[0].lower()
        if variable.startswith(PREFIX) and name not in fields:
            near = get_close_matches(name, fields, 1, _ALIKE)
            if near:
                raise InvalidSettings(variable, _NO_SUCH, PREFIX + near[0].upper())


def like(name: str, names: Collection[str]) -> str:
    """Return the one of these names that is like a misspelt one, else all of them.

    A name with a further word comes first: "send_in" is rather "send_in_seconds" than "send_at".
    """
    longer = [known for known in names if known.startswith(f"{name}_")]
    near = longer or get_close_matches(name, names, 1, _RATHER_ALIKE)
    every = f"one of {', '.join(names)}" if names else "none"
    return near[0] if near else every


def sentence_of(details: Mapping[str, Any]) -> tuple[str, str]:
    """Return what pydantic refuses and what it accepts, in words for people."""
    if details["type"] not in _SENTENCES:
        return details["msg"][:1].lower() + details["msg"][1:], "what the reference says"
    problem, accepted = _SENTENCES[details["type"]]
    # All lengths of ours are 0, and come as their repr.
    bounds = {
        name: "0 seconds" if "timedelta" in str(bound) else bound
        for name, bound in details.get("ctx", {}).items()
    }
    return problem, accepted.format_map(bounds)
