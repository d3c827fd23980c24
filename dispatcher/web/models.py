"""The bodies of calls and answers. Instants are ISO 8601, lengths are seconds.

They check types only: the dispatcher checks values, so that both give the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticKnownError

from dispatcher import (
    Erased,
    LoadToCome,
    Overview,
    Pause,
    Refusals,
    ScopeQuotas,
    Series,
    Suppression,
    Timeline,
)
from dispatcher.message import Draft, Message, OnConflict, OnUnknown, Plan, Status
from dispatcher.quota import CalendarQuota, Quota
from dispatcher.telemetry.journal import StreamEntry
from dispatcher.times.recurrence import Gap, Repeat
from dispatcher.web.access import Caller, Right

_LONGEST_SECONDS = 100 * 366 * 24 * 3_600.0
Seconds = Annotated[
    float, Field(ge=-_LONGEST_SECONDS, le=_LONGEST_SECONDS, allow_inf_nan=False, strict=True)
]


def _no_bool(value: object) -> object:
    """Refuse what Python takes for 0 or 1: ``fold: false`` would mean the first time."""
    if isinstance(value, bool):
        raise PydanticKnownError("literal_error", {"expected": "0 or 1"})
    return value


Fold = Annotated[Literal[0, 1], BeforeValidator(_no_bool)]
Priority = Annotated[int, Field(strict=True)]
Json = dict[str, Any]
Digest = Callable[[str], str] | None
"""Makes the digest by which the log names a recipient; None without a key for it."""
MOST_PLANNED = 1_000
MOST_LISTED = 1_000
_SECONDS = "_seconds"


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MessageChange(_In):
    """Another body for a scheduled message, or a template that is rendered now; or a priority."""

    body: Json | None = None
    template: str | None = None
    data: Json | None = None
    priority: Priority | None = None


class _Times(_In):
    send_at: Annotated[str | None, Field(examples=["2026-12-24T08:30:00+01:00"])] = None
    send_in_seconds: Seconds | None = None
    zone: Annotated[str | None, Field(examples=["Europe/Berlin"])] = None
    fold: Fold | None = None
    on_conflict: OnConflict = "reject"
    latest: str | None = None
    expires_at: str | None = None
    expire_after_seconds: Seconds | None = None


class NewTime(_Times):
    """Another time for a scheduled message. The fields are those of `Dispatcher.reschedule`."""

    set_zone: str | None = None

    def fields(self) -> dict[str, Any]:
        return _as_lengths(self.model_dump())


class _Address(_In):
    channel: str
    recipient: str


class _Delivery(MessageChange):
    """What a message and each occurrence of a series may have."""

    scope: str | None = None
    scopes: dict[str, str] | None = None
    quiet_hours: str | None = None
    send_window: str | None = None
    on_unknown: OnUnknown | None = None
    expire_after_seconds: Seconds | None = None
    campaign: str | None = None
    quotas: Literal["none"] | None = None


class NewMessage(_Delivery, _Times, _Address):
    """A message to accept. The fields are those of `Dispatcher.submit`."""

    status_url: str | None = None
    event: str | None = None
    offset: Annotated[str | None, Field(examples=["-24 hours", "-1 day"])] = None
    event_at: str | None = None

    def draft(self, idempotency_key: str | None = None) -> Draft:
        fields = self.model_dump(include=set(NewMessage.model_fields))
        return Draft(**_as_lengths(fields), idempotency_key=idempotency_key)


class NewMessageLine(NewMessage):
    """A line of a batch: a message to accept, and its own idempotency key."""

    idempotency_key: str | None = None


class Retry(_In):
    """Further attempts for a failed message; `perhaps_sent` accepts that it is sent twice."""

    perhaps_sent: Annotated[bool, Field(strict=True)] = False


class Drop(_In):
    """The reason for which a held message is dropped; it becomes part of `last_error`."""

    reason: str | None = None


class Plans(_In):
    """Messages of which a plan is made."""

    messages: Annotated[list[NewMessage], Field(max_length=MOST_PLANNED)]


class Out(BaseModel):
    """The body of an answer."""

    model_config = ConfigDict(from_attributes=True)

    def text(self) -> str:
        return self.model_dump_json(exclude_unset=True)


class MessageOut(Out):
    """An accepted message.

    `body` needs the right `bodies:read`. Without the right `recipients:read`, `recipient`, `scope`
    and `last_error` are left out; `recipient_digest` names the recipient as the log does, where the
    setting `log_key` is set. `idempotency_key` is the one that the caller gave. One that another
    caller or a program in Python gave is as it is stored, and null without `recipients:read` or for
    a key that is bound to channels or a scope.
    """

    id: UUID
    status: Status
    channel: str
    recipient: str | None = None
    recipient_digest: str | None = None
    scope: str | None = None
    scopes: dict[str, str]
    body: Json | None = None
    send_at: datetime
    next_attempt_at: datetime
    expires_at: datetime | None
    expire_after_seconds: float | None
    asked_at: datetime | None
    attempt_count: int
    max_attempts: int
    idempotency_key: str | None
    created_at: datetime
    finished_at: datetime | None
    last_error: str | None = None
    zone: str | None
    quiet_hours: str | None
    on_unknown: OnUnknown
    campaign: str | None
    event: str | None
    wish: str | None
    priority: int
    delayed_by: str | None

    @classmethod
    def of(cls, message: Message, caller: Caller, digest: Digest) -> Self:
        hidden = {"recipient", "recipient_digest", "idempotency_key"}
        if Right.RECIPIENTS_READ not in caller.rights:
            hidden |= {"scope", "last_error"}
        if Right.BODIES_READ not in caller.rights:
            hidden.add("body")
        shown = _fields_of(message, cls.model_fields.keys() - hidden)
        shown |= _recipient(message.recipient, caller, digest)
        return cls(**shown, idempotency_key=caller.shown_key(message.idempotency_key))


class VerdictOut(Out):
    """The result of one line of a batch: a message, or a problem. `number` counts from 0."""

    number: int
    status: int
    message: MessageOut | None = None
    problem: Json | None = None


class Rejected(Out):
    """A draft that a plan refuses. `number` is its position, from 0."""

    number: int
    problem: Json


class PlanOut(Out):
    """The result that messages would have if they were submitted now.

    `asked` counts the times asked for by minute, `promised` those of the new messages.
    """

    accepted: int
    known: int
    shifted: int
    first_send_at: datetime | None
    last_send_at: datetime | None
    by_reason: dict[str, int]
    rejections: list[Rejected]
    asked: dict[datetime, int]
    promised: dict[datetime, int]

    @classmethod
    def of(cls, plan: Plan, problem_of: Callable[[Any], Json]) -> Self:
        fields = {name: getattr(plan, name) for name in cls.model_fields}
        fields["rejections"] = [
            Rejected(number=rejection.number, problem=problem_of(rejection.error))
            for rejection in plan.rejections
        ]
        return cls(**fields)


class Filters(_In):
    """Filters of messages. A message matches if it matches all of them."""

    status: Status | None = None
    channel: str | None = None
    recipient: str | None = None
    scope: str | None = None
    count: Annotated[
        list[str] | None, Field(description="KIND=NAME: a scope it counts against, too.")
    ] = None
    campaign: str | None = None
    event: str | None = None
    priority_from: int | None = None
    key: Annotated[
        str | None, Field(description="The idempotency key of a submit of this caller's.")
    ] = None
    key_prefix: Annotated[str | None, Field(description="The beginning of such a key.")] = None
    from_at: Annotated[str | None, Field(alias="from")] = None
    until_at: Annotated[str | None, Field(alias="until")] = None
    zone: str | None = None
    overdue: bool = False
    made_after: Annotated[
        str | None, Field(description="The id of a message: later ones match.")
    ] = None


class PageFilters(Filters):
    """Filters of messages, and which page of them."""

    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 50
    cursor: str | None = None


class CountsOut(Out):
    """How many messages there are, by channel and status; unless `complete`, there are more."""

    counts: dict[str, dict[Status, int]]
    complete: bool


class MessagesOut(Out):
    """A page of messages, the newest first. `cursor` gets the next page; null on the last one."""

    messages: list[MessageOut]
    cursor: UUID | None


class SuppressionIn(_In):
    """An opt-out of one channel, or of all."""

    channel: str | None = None


class SuppressionOut(Out):
    """An opt-out. `channel` is null for every channel.

    Without the right `recipients:read`, `recipient` is left out; `recipient_digest` names it as the
    log does, where the setting `log_key` is set.
    """

    recipient: str | None = None
    recipient_digest: str | None = None
    channel: str | None
    created_at: datetime

    @classmethod
    def of(cls, stored: Suppression, caller: Caller, digest: Digest) -> Self:
        shown = stored._asdict()
        return cls(**_recipient(shown.pop("recipient"), caller, digest), **shown)


class SuppressionsOut(Out):
    """The opt-outs of a recipient."""

    suppressions: list[SuppressionOut]


class SuppressedOut(Out):
    """The number of scheduled messages that an opt-out cancelled."""

    cancelled: int


class ErasureIn(_In):
    """A recipient to erase. `keep_opt_out` leaves its opt-out, and so its address there."""

    recipient: str
    keep_opt_out: bool = False


class PauseOut(Out):
    """What is not sent: messages of a `channel`, `recipient`, `campaign`, `event` or scope."""

    kind: str
    name: str | None = None
    recipient_digest: str | None = None
    paused_at: datetime

    @classmethod
    def of(cls, pause: Pause, caller: Caller, digest: Digest) -> Self:
        shown = {"name": pause.name}
        if not caller.sees_pause_name(pause.kind):
            shown = _recipient(pause.name, caller, digest)
        return cls(kind=pause.kind, paused_at=pause.paused_at, **shown)


class PausesOut(Out):
    """The pauses in force."""

    pauses: list[PauseOut]


class QuotasIn(_In):
    """The quotas that a scope is to have instead of those of its kind, and limits of its sends.

    What is not given stays; `limits` without any end.
    """

    quotas: list[str] | None = None
    limits: list[str] | None = None


class ScopeQuotasOut(Out):
    """The quotas of a scope, its `own` or those of its kind; and the limits of its sends.

    `over` counts bookings to come that are more than they allow; a list does not tell it.
    """

    kind: str
    name: str | None = None
    recipient_digest: str | None = None
    quotas: list[str]
    own: bool
    over: int
    limits: list[str]

    @classmethod
    def of(cls, quotas: ScopeQuotas, caller: Caller, digest: Digest) -> Self:
        shown = {"name": quotas.name}
        if not caller.sees_pause_name(quotas.kind):
            shown = _recipient(quotas.name, caller, digest)
        more = {name: getattr(quotas, name) for name in ("kind", "own", "over")}
        return cls(quotas=[*quotas.quotas], limits=[*quotas.limits], **more, **shown)


class ScopeSettingsOut(Out):
    """Scopes that have quotas or limits of their own."""

    scopes: list[ScopeQuotasOut]


class EventIn(_In):
    """When an event is; `zone` is that of local times and of offsets by the calendar."""

    at: Annotated[str, Field(examples=["2026-12-24T08:30:00+01:00"])]
    zone: str | None = None


class EventMove(EventIn):
    """Another time for an event and its scheduled messages, all or none."""

    on_conflict: OnConflict = "reject"
    past: Literal["refuse", "cancel", "now"] = "refuse"


class SeriesRecipient(_In):
    """A recipient of a series with its own zone, and its own data for the template."""

    recipient: str
    zone: str | None = None
    data: Json | None = None


class _SeriesFields(_Delivery):
    recipients: list[str | SeriesRecipient] | str | None = None
    start: str | None = None
    zone: Annotated[str | None, Field(examples=["Europe/Berlin", "local"])] = None
    gap: Gap | None = None
    repeat: Repeat | None = None
    spread_seconds: Seconds | None = None
    conflict: Literal["shift", "skip", "refuse"] | None = None
    window_seconds: Seconds | None = None
    missed: Literal["all", "last", "none"] | None = None


class _SeriesGiven(_SeriesFields):
    recipient: str | None = None
    until: str | None = None
    count: Annotated[int, Field(strict=True)] | None = None
    status_url: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return what was given."""
        return _as_lengths(self.model_dump(exclude_unset=True))


class SeriesIn(_SeriesGiven):
    """Messages that repeat by a rule. The fields are those of `Dispatcher.series.add`."""

    rule: Annotated[str, Field(examples=["FREQ=DAILY;BYHOUR=9", "0 9 * * *"])]
    channel: str


class SeriesChange(_SeriesGiven):
    """What is to be other from `since` on, by default for all that is to come."""

    since: str | None = None
    rule: str | None = None
    channel: str | None = None


class SkippedOut(Out):
    """An occurrence that has no message, and why."""

    nominal: str
    reason: str


class SeriesOut(_SeriesFields, Out):
    """A series. `start` is a wall time of `zone`; until `booked_until` its messages are booked.

    `body` and `data` need the right `bodies:read`, `recipients` and `scope` need `recipients:read`.
    """

    name: str
    rule: str
    channel: str
    booked_until: datetime | None
    skipped: list[SkippedOut]

    @classmethod
    def of(cls, series: Series, caller: Caller) -> Self:
        hidden = set[str]()
        if Right.RECIPIENTS_READ not in caller.rights:
            hidden |= {"recipients", "scope"}
        if Right.BODIES_READ not in caller.rights:
            hidden |= {"body", "data"}
        shown = _fields_of(series, cls.model_fields.keys() - hidden)
        shown["start"] = series.start.isoformat()
        if not isinstance(shown.get("recipients", ""), str):
            shown["recipients"] = [
                {name: value for name, value in who._asdict().items() if name not in hidden}
                for who in shown["recipients"]
            ]
        return cls(**shown)


class SeriesListOut(Out):
    """Series in the order of their names."""

    series: list[SeriesOut]


class TimesOut(Out):
    """The next times of a series by its rule."""

    times: list[datetime]


class CancelledOut(Out):
    """The number of messages of a series that were cancelled."""

    cancelled: int


class NamedEventOut(Out):
    """An event that messages remind of; `wish` is the local time that it was given in."""

    name: str
    at: datetime
    zone: str | None
    wish: str | None
    cancelled_at: datetime | None


class SlotOut(Out):
    """The first time that fits every quota and lies outside quiet hours.

    `suppressed` is true if the recipient has opted out of the channel, or of all channels if the
    call names none: then every submit is refused. Only for the kind `recipient`, and for callers
    with `messages:write`, or with `recipients:read` on a key without channels or scope.
    """

    next_slot: datetime
    suppressed: bool | None = None


class OutOfLengths(Out):
    """The body of an answer with lengths: ``age_seconds`` is the ``age`` of what it shows."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> dict[str, Any]:
        return _fields_of(value, cls.model_fields)


class SignOut(OutOfLengths):
    """A process or a duty, and how long ago it was seen at work.

    A duty is alive if it was done within ten of its intervals.
    """

    name: str
    age_seconds: float
    is_alive: bool


class StatusOut(Out):
    """The state of the deployment. Lists are null where Redis does not answer."""

    now: datetime
    counts: dict[str, dict[Status, int]]
    held: int
    overdue: int
    longest_overdue_seconds: float
    due_in_each_minute: list[int]
    workers: list[SignOut] | None
    beats: list[SignOut] | None
    duties: list[SignOut] | None

    @classmethod
    def of(cls, overview: Overview) -> Self:
        same = ("now", "held", "workers", "beats", "duties")
        return cls(
            **{name: getattr(overview, name) for name in same},
            counts=overview.counts.by_channel,
            overdue=overview.overdue.many,
            longest_overdue_seconds=overview.overdue.longest.total_seconds(),
            due_in_each_minute=overview.load.minutes,
        )


_NAMES = {
    "QuotaTimeline": "QuotaOut", "WindowTimeline": "WindowOut", "StreamEntry": "EventOut",
    "LoadedMinute": "MinuteOut", "LoadToCome": "LoadOut", "RuleRefusals": "RuleOut",
    "LastRefusal": "RefusalOut",
}  # fmt: skip
"""Models that are not called like the value they show, with ``Out`` behind it."""
_NOT_SHOWN = frozenset({"held", "many", "steps"})


@cache
def _model_of(returned: type) -> type[Out]:
    """Return a model with the same fields; a length ``age`` is ``age_seconds``."""
    name, fields = returned.__name__, dict[str, Any]()
    text = (returned.__doc__ or "").partition("\n")[0].partition(". ")[0]
    text = f"{text.replace('``', '`').rstrip('.')}."
    base = Out
    for field, kind in get_type_hints(returned).items():
        if kind is timedelta:
            base, fields[f"{field}{_SECONDS}"] = OutOfLengths, (float, ...)
        elif field not in _NOT_SHOWN:
            fields[field] = (_shown_as(kind), ...)
    name = _NAMES.get(name, f"{name}Out")
    return create_model(name, __base__=base, __doc__=text, __module__=__name__, **fields)


def _shown_as(kind: Any) -> Any:
    if get_origin(kind) is tuple:
        return list[_shown_as(get_args(kind)[0])]  # type: ignore[misc]
    if kind == Quota | CalendarQuota:
        return Annotated[str, BeforeValidator(str)]
    return _model_of(kind) if is_dataclass(kind) or hasattr(kind, "_fields") else kind


TimelineOut, EventOut, ErasedOut = map(_model_of, (Timeline, StreamEntry, Erased))
LoadOut, RefusalsOut = map(_model_of, (LoadToCome, Refusals))


def _fields_of(shown: object, names: Iterable[str]) -> dict[str, Any]:
    fields = {name: getattr(shown, name.removesuffix(_SECONDS)) for name in names}
    lengths = {name: value for name, value in fields.items() if isinstance(value, timedelta)}
    return fields | {name: length.total_seconds() for name, length in lengths.items()}


def _recipient(recipient: str, caller: Caller, digest: Digest) -> dict[str, Any]:
    if Right.RECIPIENTS_READ in caller.rights:
        return {"recipient": recipient}
    return {} if digest is None else {"recipient_digest": digest(recipient)}


def _as_lengths(fields: dict[str, Any]) -> dict[str, Any]:
    for name in [name for name in fields if name.endswith(_SECONDS)]:
        seconds = fields.pop(name)
        length = None if seconds is None else timedelta(seconds=seconds)
        fields[name.removesuffix(_SECONDS)] = length
    return fields
