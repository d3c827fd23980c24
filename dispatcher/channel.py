"""The settings of a channel and of a kind of scope, and the types of their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)
from pydantic_settings import NoDecode

from dispatcher.errors import InvalidValue, quoted
from dispatcher.message import OnUnknown
from dispatcher.quota import (
    CalendarLimit,
    CalendarQuota,
    Limit,
    Quota,
    parse_length,
    parse_limit,
    parse_quota,
)
from dispatcher.times.quiet_hours import Hours

CatchUp = Literal["send", "expire"]
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def split(value: object) -> object:
    """Return the parts of a text with commas, or of a JSON list."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else value.split(",")


def _read_by(parse: Callable[[str], object]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


Length = Annotated[
    timedelta,
    _read_by(parse_length),
    PlainSerializer(timedelta.total_seconds),
    Field(gt=timedelta(0)),
]
AnyQuota = Annotated[Quota | CalendarQuota, _read_by(parse_quota), PlainSerializer(str)]
Quotas = Annotated[tuple[AnyQuota, ...], NoDecode, BeforeValidator(split)]
AnyLimit = Annotated[Limit | CalendarLimit, _read_by(parse_limit), PlainSerializer(str)]
Limits = Annotated[tuple[AnyLimit, ...], NoDecode, BeforeValidator(split)]


def _read_hours(value: object, info: ValidationInfo) -> object:
    return Hours.parse(value, field=info.field_name or "") if isinstance(value, str) else value


WeekHours = Annotated[Hours, BeforeValidator(_read_hours), PlainSerializer(str)]


class ScopeKind(BaseModel):
    """A kind of scope that messages may name besides their own, such as a tenant."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    quotas: Annotated[Quotas, Field(min_length=1)]
    """Quotas of each scope of this kind, checked at submit."""


class ChannelSettings(BaseModel):
    """The settings of one channel: transport, limits, quotas, hours and retries."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    transport: Annotated[str, Field(min_length=1)]
    """The name of a transport that ships, such as ``smtp`` (docs/transports.md lists them), or of
    an entry point of the group ``dispatcher.transports``; or ``package.module:attribute``."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Keyword arguments for the transport's class."""
    limits: Limits = ()
    """Limits on the sends of the whole channel, beside those of each scope."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many of its messages all workers together may send at a time."""
    senders: Annotated[int, Field(ge=1, le=1_000)] = 16
    """How many of its messages one worker process sends at a time. Where the transport names
    destinations, at most three quarters of these go to one of them."""
    body: Annotated[str, Field(pattern=r"^([\w.]+:\w+)?$")] = ""
    """``package.module:attribute`` of the type of its bodies: a model of pydantic, a dataclass or a
    TypedDict. Every body is validated by it at submit, and stored as the JSON that the type writes.
    Empty: any JSON object."""
    recipients: Annotated[str, Field(pattern=r"^(email|phone|[\w.]+:\w+)?$")] = ""
    """The rule that gives each recipient one spelling: ``email`` (the domain in lower case),
    ``phone`` (``+`` and digits), or ``package.module:function``, which takes and returns a text, or
    raises InvalidDraft. Empty: recipients stay as they are given."""
    quotas: Quotas = ()
    """Quotas of the whole channel, such as its provider's allowance, checked at submit. ``[]``
    means ``without_quotas = "always"``."""
    recipient_quotas: Quotas = ()
    """Quotas of each scope (by default each recipient) on this channel, checked at submit."""
    without_quotas: Literal["never", "allowed", "always"] = "never"
    """Which of its messages no quota counts or refuses, such as codes. ``allowed``: those that are
    submitted with ``quotas="none"``."""
    quiet_hours: WeekHours | None = None
    """When nothing is sent, in each recipient's zone: ``21:00-08:00``."""
    send_window: WeekHours | None = None
    """The complement: when messages may be sent. Not together with ``quiet_hours``."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 10
    """Attempts before a message ends as failed; with the waits below, a quarter of an hour."""
    backoff_base: Length = timedelta(seconds=5)
    """Upper bound of the wait after the first failed attempt; doubles with each further one."""
    backoff_longest: Length = timedelta(minutes=10)
    """Upper bound of any wait."""
    on_unknown: OnUnknown = "retry"
    """What follows an attempt with an unknown outcome, unless the message says it itself.
    ``retry``: another attempt; the message is sent at least once. ``hold``: it is held for a
    person to decide; the message is sent at most once."""
    expire_after: Length | None = None
    """How long after its send time a message expires, unless it has an expiry of its own."""
    templates: dict[str, dict[str, Any]] = Field(default_factory=dict, repr=False)
    """Bodies by name whose texts are Jinja2, rendered at submit: ``reminder = {subject =
    "Hello {{ name }}", text = "…"}``. Values in the text ``html`` are escaped."""
    templates_dir: Path | None = None
    """A folder of further templates, a file for each text of a body: ``reminder.subject``,
    ``reminder.text``, ``reminder.html``. They may include or extend other files of the folder."""
    catch_up: CatchUp = "send"
    """What happens to overdue messages: those that no worker claimed for ``overdue_after``.
    ``send``: they are sent late, not in quiet hours. ``expire``: they end as expired."""

    @cached_property
    def quiet(self) -> Hours | None:
        """When nothing may be sent, by ``quiet_hours`` or ``send_window``."""
        return self.send_window.complement if self.send_window else self.quiet_hours

    @model_validator(mode="before")
    @classmethod
    def _read_no_quotas(cls, channel: Any) -> Any:
        quotas = split(channel.get("quotas")) if isinstance(channel, dict) else None
        if isinstance(quotas, list | tuple) and len(quotas) == 0:
            return {"without_quotas": "always"} | channel
        return channel

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.without_quotas == "always" and (self.quotas or self.recipient_quotas):
            problem = 'quotas = [] or without_quotas = "always", and yet quotas are given'
            raise InvalidValue("quotas", problem, "one of the two")
        for name, body in self.templates.items():
            check_name("templates", name)
            if not body:
                raise InvalidValue("templates", f"nothing is in {quoted(name)}", "a body of texts")
        check_hours(self.quiet_hours, self.send_window)
        return self


def check_name(field: str, name: str) -> None:
    """Raise InvalidValue for a name that the settings cannot have."""
    if NAME.fullmatch(name) is None:
        raise InvalidValue(field, f"the name {quoted(name)}", "a-z, 0-9, _ and -, at most 63")


def check_hours(quiet_hours: Hours | None, send_window: Hours | None) -> None:
    """Raise InvalidValue if both are given, or no minute of the week is left to send in."""
    if quiet_hours and send_window:
        raise InvalidValue("send_window", "given together with quiet_hours", "one of the two")
    if quiet_hours and quiet_hours.covers_week:
        raise InvalidValue("quiet_hours", "they cover the whole week", "hours that leave some time")
