"""The settings of a channel and of a kind of scope, the types of their fields, and spellings.

One spelling of each recipient, so that quotas, opt-outs, keys and filters compare the same.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property, partial
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

from dispatcher.errors import (
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    load_named,
    quoted,
    refusal_of,
)
from dispatcher.message import MAX_PRIORITY, OnUnknown, check_recipient
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

log = logging.getLogger(__name__)

Spell = Callable[[str], str]
_BETWEEN_DIGITS = re.compile(r"[ ()./-]")
_PERHAPS_DIALLED = re.compile(r"\(\s*0\s*\)")
_PHONE = re.compile(r"\+[1-9][0-9]{6,14}")
_TRUNK = re.compile(
    # Countries whose numbers begin with 0 themselves, such as Italy.
    r"\+(?!39|22[5679]|24[127]|267|378|501|507|67[69]|687|800|853|881|888|974|992)"
    # The country codes of one and two digits; all others have three.
    r"(?>[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[0-9]{3})0"
    r"|\+(?:370|375|993)8|\+1(?![2-9][0-9]{9}\Z)|\+7(?![0-9]{10}\Z)"
)
"""A number with the digit that is dialled within a country only: 0, in some countries 8 or 1."""
_PHONE_ACCEPTED = "a phone number with + and its country code, such as +49 151 2345678"
CatchUp = Literal["send", "expire"]
_BETWEEN_PARTS = re.compile(r",(?!\s*[0-9]+\s+kept\s)")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def split(value: object) -> object:
    """Return the parts of a text with commas, or of a JSON list. ``1 kept for …`` is no part."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else _BETWEEN_PARTS.split(value)


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
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    """The priority of its messages, unless a message has one of its own: where a limit is short,
    larger ones go first."""
    fair_by: str = ""
    """Whose messages get fair shares where a limit is short: those of each ``recipient``,
    ``campaign`` or scope of a kind of ``scopes``, such as ``tenant``; the others share one. Empty:
    within a priority they go first come, first served."""
    weights: dict[str, Annotated[float, Field(ge=0.01, le=1_000)]] = Field(default_factory=dict)
    """How much larger the share of a value of ``fair_by`` is than that of others, which weigh 1."""
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

    def share(self, value: str) -> str:
        """Return the share of a value of ``fair_by``."""
        return f"{self.fair_by}:{value}"

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
            problem = 'cannot stand beside quotas = [] or without_quotas = "always"'
            raise InvalidValue("quotas", problem, "one of them")
        for name, body in self.templates.items():
            check_name("templates", name)
            if not body:
                raise InvalidValue("templates", f"{quoted(name)} is empty", "a body of texts")
        check_hours(self.quiet_hours, self.send_window)
        if self.weights and not self.fair_by:
            raise InvalidValue("weights", "weigh nothing without fair_by", "fair_by beside them")
        return self


def check_name(field: str, name: str) -> None:
    """Raise InvalidValue for a name that the settings cannot have."""
    if NAME.fullmatch(name) is None:
        raise InvalidValue(field, f"the name {quoted(name)}", "a-z, 0-9, _ and -, at most 63")


def check_hours(quiet_hours: Hours | None, send_window: Hours | None) -> None:
    """Raise InvalidValue if both are given, or no minute of the week is left to send in."""
    if quiet_hours and send_window:
        raise InvalidValue("send_window", "given together with quiet_hours", "one of them")
    if quiet_hours and quiet_hours.covers_week:
        raise InvalidValue("quiet_hours", "cover the whole week", "hours that leave some time")


class Spellings:
    """Spells recipients by the rules of their channels. Without a rule they stay as given."""

    def __init__(self, channels: Mapping[str, ChannelSettings]) -> None:
        self._rules = {name: channel.recipients for name, channel in channels.items()}
        self._spells: dict[str, Spell] = {"": str, "email": email, "phone": phone}

    def on(self, channel: object, recipient: str) -> str:
        """Return the spelling on a channel. Raises InvalidDraft, and InvalidSettings."""
        rule = self._rules.get(channel, "") if isinstance(channel, str) else ""
        return recipient if not rule else self._spelt(rule, recipient)

    def all(self, recipient: str, channel: str | None = None) -> tuple[str, ...]:
        """Return different spellings on a channel, or all that accept it. InvalidDraft if none."""
        if channel is not None:
            return (self.on(channel, recipient),)
        spellings: dict[str, None] = {}
        refusal: InvalidDraft | None = None
        for rule in dict.fromkeys(self._rules.values()):
            try:
                spellings[self._spelt(rule, recipient)] = None
            except InvalidDraft as refused:
                refusal = refused
        if refusal is not None and not spellings:
            raise refusal
        return tuple(spellings)

    def one(self, recipient: str, channel: str | None = None) -> str:
        """Return the spelling. Raises InvalidDraft where channels spell it in several ways."""
        spellings = self.all(recipient, channel)
        if len(spellings) > 1:
            accepted = f"with a channel, or as {quoted(spellings[0])}"
            raise InvalidDraft("recipient", "channels spell it in several ways", accepted)
        return spellings[0]

    def problems(self) -> Mapping[str, InvalidSettings | None]:
        """Load each channel's rule; return its error, or None, by the name of the setting."""
        return {
            f"channels.{channel}.recipients": refusal_of(partial(self._rule, rule))
            for channel, rule in self._rules.items()
            if rule
        }

    def _rule(self, rule: str) -> Spell:
        if rule not in self._spells:
            accepted = "email, phone, or package.module:function of a text"
            spell: Spell = load_named("recipients", rule, accepted)
            if not callable(spell):
                raise InvalidSettings("recipients", f"{quoted(rule)} is no function", accepted)
            self._spells[rule] = spell
        return self._spells[rule]

    def _spelt(self, rule: str, recipient: str) -> str:
        spell = self._rule(rule)
        try:
            spelt = spell(recipient)
        except InvalidValue as refused:
            raise InvalidDraft("recipient", refused.problem, refused.accepted) from None
        except Exception as error:  # noqa: BLE001 - code of others; its text may quote the recipient
            kind = type(error).__name__
            text = "the spelling rule %r raised %s: the draft is refused; correct the function"
            log.error(text, rule, kind)  # noqa: TRY400 - same
            raise InvalidDraft(
                "recipient", f"its spelling raised {kind}", f"a recipient that {rule!r} can spell"
            ) from None
        return check_recipient(spelt)


def email(text: str) -> str:
    """Write the domain of an address in lower case ASCII, and keep the mailbox before the ``@``.

    ``bücher.example`` becomes ``xn--bcher-kva.example``, as name servers know it (RFC 3492). The
    case of a mailbox may matter. Raises InvalidDraft.
    """
    local, at, domain = text.rpartition("@")
    if not (local and domain):
        raise InvalidDraft("recipient", "no e-mail address", "one such as ada@example.org")
    labels = unicodedata.normalize("NFC", domain.lower()).split(".")
    return f"{local}{at}{'.'.join(map(_ascii, labels))}"


def _ascii(label: str) -> str:
    """Return a label as name servers know it; one that is no name, unchanged."""
    is_name = all(unicodedata.category(letter)[0] in "LMN" or letter == "-" for letter in label)
    if label.isascii() or not is_name:
        return label
    return f"xn--{label.encode('punycode').decode('ascii')}"


def phone(text: str) -> str:
    """Write a phone number as E.164 does: ``+`` and 7 to 15 digits, a country code first.

    Raises InvalidDraft, also for what is no one number in all countries: without ``+`` (``00`` is
    dialled before a country code in many of them, ``011`` and ``0011`` in others), with ``(0)``,
    and with the ``0`` that a country dials only within itself, as in ``+44 (020) 7946 0958``.
    """
    if _PERHAPS_DIALLED.search(text):
        raise InvalidDraft("recipient", "a (0) that may belong to the number", _PHONE_ACCEPTED)
    digits = _BETWEEN_DIGITS.sub("", text)
    if not digits.startswith("+"):
        raise InvalidDraft("recipient", "no + before a country code", _PHONE_ACCEPTED)
    if _PHONE.fullmatch(digits) is None:
        raise InvalidDraft("recipient", "no phone number with a country code", _PHONE_ACCEPTED)
    if _TRUNK.match(digits):
        problem = "no number of that country, or one with a digit that is dialled only within it"
        raise InvalidDraft("recipient", problem, _PHONE_ACCEPTED)
    return digits
