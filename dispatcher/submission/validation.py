"""Validate drafts: a valid value, or an error that names the field. Without I/O.

Bodies are rendered from templates and validated by types before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple, get_args
from uuid import UUID

from dispatcher.body_types import BodyType, Channel
from dispatcher.channel import ChannelSettings, check_hours
from dispatcher.errors import (
    InvalidDraft,
    InvalidSendTime,
    InvalidValue,
    UnknownChannel,
    kind_of,
    plain,
    quoted,
)
from dispatcher.message import (
    MAX_CAMPAIGN,
    MAX_EVENT,
    Body,
    Draft,
    Message,
    OnConflict,
    OnUnknown,
    check_body,
    check_recipient,
    check_text,
    fingerprint,
    scope_name,
)
from dispatcher.reservation.booking import BookingRequest, Submit, Terms
from dispatcher.scope import WITHOUT, Scope, counted
from dispatcher.selection import check_priority
from dispatcher.settings import Settings
from dispatcher.store.schema import Event
from dispatcher.templating import Templates
from dispatcher.times import send_time
from dispatcher.times.clock import MILLISECOND
from dispatcher.times.offset import Offset
from dispatcher.times.quiet_hours import NO_HOURS, Hours, read_hours
from dispatcher.times.send_time import to_ms

if TYPE_CHECKING:
    from dispatcher.body_types import AnyBody

SERIES = "series:"
"""Begins the name of the event of a series, and the keys of its occurrences."""
Check = Callable[[str, str, Body], object]
"""Takes channel, recipient and body; raises InvalidDraft for a message that could never be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurring(Draft):
    """The draft of an occurrence; stored only while its series has that token."""

    series: str
    series_token: str
    nominal: str


class Reminder(NamedTuple):
    """How far a draft stands from its event, and that, where the draft says when it is."""

    offset: Offset
    event: Event | None


class ValidDraft(NamedTuple):
    """A validated draft, before its time is reserved.

    ``send_at`` is the instant asked for and ``latest`` the last one it may be shifted to, None
    when it may not. ``body_json`` is the body as it is stored. ``terms`` judge its time; ``zone``
    and ``quiet_hours`` are those that the caller gave. ``fingerprint`` is a digest of the submit's
    parameters, None without an idempotency key; two submits with one key must agree in it.
    ``on_unknown`` and ``expire_after`` are the caller's or else the channel's; the latter counts
    from the booked time. ``wish`` is that of the message. ``status_url`` receives status webhooks;
    its channel has not checked it. A ``reminder`` has no ``send_at`` before :func:`at_event`.
    """

    channel: str
    recipient: str
    scope: str
    body: Body
    body_json: str
    send_at: datetime
    latest: datetime | None
    expires_at: datetime | None
    idempotency_key: str | None
    fingerprint: str | None
    terms: Terms
    scopes: Mapping[str, str]
    zone: str | None
    quiet_hours: str | None
    on_unknown: OnUnknown
    expire_after: timedelta | None
    status_url: str | None = None
    campaign: str | None = None
    wish: str | None = None
    event: str | None = None
    reminder: Reminder | None = None
    event_token: str | None = None
    new_event: Event | None = None

    def request(
        self, message_id: UUID, *, supersedes: UUID | None = None, tail: str = ""
    ) -> BookingRequest:
        """Return the request to the windows; ``tail`` is the tail of the present reservation."""
        asked_ms = to_ms(self.send_at)
        latest_ms = asked_ms if self.latest is None else max(asked_ms, to_ms(self.latest))
        submit = None
        if self.idempotency_key is not None:
            submit = Submit(
                self.idempotency_key,
                self.fingerprint or "",
                supersedes=supersedes,
                event_token=self.event_token,
            )
        return BookingRequest(message_id, self.terms, asked_ms, latest_ms, submit, tail)

    def expiry(self, send_at: datetime) -> datetime | None:
        return self.expires_at if self.expire_after is None else send_at + self.expire_after

    def __repr__(self) -> str:
        """Show no body: it must not reach a log."""
        return f"ValidDraft(channel={self.channel!r}, send_at={self.send_at!r})"


def validate_fields(
    draft: Draft, *, settings: Settings, now: datetime, given_body: Body | None = None
) -> ValidDraft:
    """Validate ``draft``, but for the order of its times: see :func:`judge_times`.

    ``given_body`` is the body that the caller gave, where a type has made another one of it:
    repeated submits are compared by it, because a default of the type may differ each time.
    """
    channel_name, key = known_channel(draft.channel, settings), draft.idempotency_key
    channel = settings.channels[channel_name]
    recipient = settings.spellings.on(channel_name, check_recipient(draft.recipient))
    scope = scope_name(recipient) if draft.scope is None else check_text("scope", draft.scope)
    if key is not None:
        check_text("idempotency_key", key)
    body, body_json = checked_body(draft.body, settings)
    scopes = checked_scopes(draft.scopes, settings)
    if draft.quotas is not None:
        check_choice("quotas", draft.quotas, ("none",))
        if channel.without_quotas == "never":
            accepted = f"no value, or set channels.{channel_name}.without_quotas"
            raise InvalidDraft("quotas", "this channel has no messages without quotas", accepted)
        scopes[WITHOUT] = draft.quotas
    quiet_hours = own_hours(draft.quiet_hours, draft.send_window)
    terms = terms_for(
        settings,
        scope=scope,
        channel=channel_name,
        scopes=scopes,
        zone=draft.zone,
        quiet_hours=quiet_hours,
        priority=draft.priority,
    )
    send_at, latest, expires_at, expire_after = _times(draft, channel, now, settings.max_horizon)
    if draft.on_unknown is not None:
        check_choice("on_unknown", draft.on_unknown, get_args(OnUnknown))
    status_url = None if draft.status_url is None else _status_url(draft, settings)
    if draft.campaign is not None:
        check_text("campaign", draft.campaign, longest=MAX_CAMPAIGN)
    wish = reminder = None
    if draft.event is not None or draft.offset is not None or draft.event_at is not None:
        reminder = _reminder(draft)
        wish = str(reminder.offset)
    elif draft.zone is not None and draft.send_at is not None:
        wish = send_time.local_wish(draft.send_at, send_at, draft.zone)
    occurring = draft if type(draft) is Occurring else None
    digest = None
    if key is not None:
        in_ms = None if draft.send_in is None else draft.send_in // MILLISECOND
        time = send_at.isoformat() if in_ms is None else f"in {in_ms} ms"
        if reminder is not None:
            time = f"event {draft.event} {wish}"
        # A template may have changed before a duplicate submit, so its name and data count.
        # Absent fields are left out, so that digests from before these fields existed hold.
        further = {
            "template": draft.template,
            "data": draft.data or None,
            "scopes": scopes or None,
            "zone": draft.zone,
            "quiet_hours": quiet_hours,
            "on_unknown": draft.on_unknown,
            "expire_after": None if draft.expire_after is None else str(expire_after),
            "status_url": status_url,
            "campaign": draft.campaign,
            "priority": draft.priority,
        }
        digest = fingerprint(
            channel=channel_name,
            recipient=recipient,
            scope=scope,
            body=(body if given_body is None else given_body) if draft.template is None else None,
            time=time,
            expires_at=expires_at,
            **{name: value for name, value in further.items() if value is not None},
        )
    return ValidDraft(
        channel=channel_name,
        recipient=recipient,
        scope=scope,
        body=body,
        body_json=body_json,
        send_at=send_at,
        latest=latest,
        expires_at=expires_at,
        idempotency_key=key,
        fingerprint=digest,
        terms=terms,
        scopes=scopes,
        zone=draft.zone,
        quiet_hours=quiet_hours,
        on_unknown=draft.on_unknown or channel.on_unknown,
        expire_after=expire_after,
        status_url=status_url,
        campaign=draft.campaign,
        wish=wish,
        event=draft.event if occurring is None else occurring.series,
        reminder=reminder,
        event_token=None if occurring is None else occurring.series_token,
    )


def _reminder(draft: Draft) -> Reminder:
    if draft.event is None:
        field = "offset" if draft.event_at is None else "event_at"
        raise InvalidDraft(field, "given without event", "an event beside it")
    name, event = event_name(draft.event), None
    if draft.send_at is not None or draft.send_in is not None:
        field = "send_in" if draft.send_at is None else "send_at"
        raise InvalidSendTime(field, "given together with event", "one of them")
    if draft.event_at is not None:
        event = new_event(name, draft.event_at, draft.zone, fold=draft.fold, field="event_at")
    return Reminder(Offset.parse(draft.offset), event)


def event_name(value: object) -> str:
    """Return the name of an event. Raises InvalidDraft for that of a series."""
    name = check_text("event", value, longest=MAX_EVENT)
    if name.startswith(SERIES):
        raise InvalidDraft("event", f"{SERIES} begins the events of series", "another name")
    return name


def new_event(
    name: str, at: datetime | str, zone: str | None, *, fold: int | None = None, field: str = "at"
) -> Event:
    """Return an event with a new token. Raises InvalidSendTime."""
    instant = send_time.parse(at, zone=zone, fold=fold, field=field)
    wish = None if zone is None else send_time.local_wish(at, instant, zone)
    return Event(name, instant, zone, wish, token=token_hex(6))


def known_event(event: Event | None, accepted: str = "one that was set") -> Event:
    if event is None:
        raise InvalidDraft("event", "there is no event of this name", accepted)
    return event


def open_event(event: Event | None, accepted: str = "one that was set") -> Event:
    event = known_event(event, accepted)
    if event.cancelled_at is not None:
        raise InvalidDraft("event", "the event was cancelled", "another event")
    return event


def set_otherwise(event: Event, field: str) -> InvalidDraft:
    """Return the error of another time for an event that was set."""
    zone = "without a zone" if event.zone is None else f"in zone {event.zone}"
    problem = f"the event is set to {event.at.isoformat()} {zone}"
    return InvalidDraft(field, problem, "the same; events.move gives it another time")


def at_event(
    valid: ValidDraft,
    reminder: Reminder,
    stored: Mapping[str, Event],
    new: dict[str, Event],
    *,
    settings: Settings,
    now: datetime,
) -> ValidDraft:
    """Return a reminder at the time that its event gives it; ``new`` gets one that is not stored.

    Raises InvalidDraft.
    """
    name = valid.event or ""
    if reminder.event is not None and name not in stored:
        new.setdefault(name, reminder.event)
    event = stored.get(name) or new.get(name)
    event = open_event(event, "one that was set, or event_at beside it")
    if reminder.event is not None and reminder.event.at != event.at:
        raise set_otherwise(event, "event_at")
    zone = send_time.check_zone(event.zone or settings.zone)
    send_at = reminder.offset.from_event(event.at, zone)
    send_time.check_range(send_at, now=now, farthest=settings.max_horizon, field="offset")
    return valid._replace(send_at=send_at, event_token=event.token, new_event=new.get(name))


def judge_times(valid: ValidDraft, *, now: datetime) -> None:
    """Raise InvalidSendTime unless the send time is to come, and expiry and latest after it."""
    if valid.send_at < now:
        raise send_time.past(valid.send_at)
    if valid.expires_at is not None and valid.expires_at <= valid.send_at:
        problem = f"{valid.expires_at.isoformat()} is not after the send time"
        raise InvalidSendTime("expires_at", problem, "a later time")
    if valid.latest is not None and valid.latest < valid.send_at:
        problem = f"{valid.latest.isoformat()} is before the send time"
        raise InvalidSendTime("latest", problem, "a later time")


def _send_at(
    draft: Draft, read: Callable[[datetime | str], datetime], now: datetime
) -> tuple[str, datetime]:
    """Return the send time, and the field that gives it."""
    if draft.send_at is not None and draft.send_in is None:
        send_at = read(draft.send_at)
        if type(draft) is Occurring and send_at < now:  # it was to come when its pass began
            send_at = send_time.after(timedelta(0), now=now)
        return "send_at", send_at
    if draft.send_in is not None and draft.send_at is None:
        if draft.fold is not None and draft.expires_at is None and draft.latest is None:
            raise InvalidSendTime("fold", "given with send_in", "send_at, or no fold")
        return "send_in", send_time.after(draft.send_in, now=now)
    if draft.event is not None and draft.send_at is None:
        return "event", now
    problem = "neither" if draft.send_at is None else "both"
    raise InvalidSendTime("send_at", f"{problem} of send_at and send_in given", "one of them")


def _times(
    draft: Draft, channel: ChannelSettings, now: datetime, horizon: timedelta
) -> tuple[datetime, datetime | None, datetime | None, timedelta | None]:
    """Return the send time, the latest one of a shift, and the expiry as an instant or a length."""
    read = partial(send_time.parse, zone=draft.zone, fold=draft.fold)
    name, send_at = _send_at(draft, read, now)
    send_time.check_not_too_far(send_at, now=now, farthest=horizon, field=name)
    latest = expires_at = None
    if draft.expires_at is not None:
        expires_at = read(draft.expires_at, field="expires_at")
    check_choice("on_conflict", draft.on_conflict, get_args(OnConflict))
    if draft.on_conflict == "shift":
        latest = now + horizon
        if draft.latest is not None:
            latest = min(read(draft.latest, field="latest"), latest)
            if type(draft) is Occurring:
                latest = max(latest, send_at)
        if expires_at is not None:
            latest = min(latest, max(expires_at, now) - MILLISECOND)
    elif draft.latest is not None:
        raise InvalidDraft("latest", "given without on_conflict='shift'", "no latest")
    return send_at, latest, expires_at, _expire_after(draft, channel, now + horizon)


def _expire_after(draft: Draft, channel: ChannelSettings, farthest: datetime) -> timedelta | None:
    """Return the length that applies; an expiry of the draft's own sets that of the channel aside.

    ``farthest`` is the latest time at which the message may be booked.
    """
    length = draft.expire_after
    if length is not None and draft.expires_at is not None:
        raise InvalidSendTime("expire_after", "given together with expires_at", "one of them")
    if length is None and draft.expires_at is None:
        length = channel.expire_after
    return None if length is None else send_time.length_until_expiry(length, farthest=farthest)


def _status_url(draft: Draft, settings: Settings) -> str:
    if not settings.status_channel:
        problem = "no channel carries status webhooks"
        raise InvalidDraft("status_url", problem, "no URL, or set status_channel in the settings")
    return check_recipient(draft.status_url, name="status_url")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InvalidDraft(name, quoted(value), " or ".join(map(repr, choices)))


def terms_for(
    settings: Settings,
    *,
    scope: str,
    channel: str | None,
    scopes: Mapping[str, str] | None = None,
    zone: str | None = None,
    quiet_hours: str | None = None,
    priority: int | None = None,
) -> Terms:
    """Return the terms that judge a time.

    ``scopes`` are as :func:`checked_scopes` returns them, ``quiet_hours`` as :func:`own_hours`.
    Without a ``priority`` it is the channel's.
    """
    if zone is not None:
        send_time.check_zone(zone)
    known = None if channel is None else settings.channels[channel]
    quiet, usual = (known.quiet, known.priority) if known else (None, 0)
    if quiet_hours is not None:
        quiet = read_hours(quiet_hours)
    if priority is not None:
        usual = check_priority(priority)
    counts = counted(settings.quotas_of, scope=scope, channel=channel or "", scopes=scopes)
    return Terms(counts, zone or settings.zone, quiet, usual)


def scopes_of(message: Message, settings: Settings) -> tuple[Scope, ...]:
    return counted(
        settings.quotas_of, scope=message.scope, channel=message.channel, scopes=message.scopes
    )


def own_hours(quiet_hours: str | None, send_window: str | None) -> str | None:
    """Return the quiet hours of a message's own, in their normal form.

    None where it has none of its own, so that those of its channel hold; ``"none"`` where it has
    none whatever its channel has.
    """
    if quiet_hours is None and send_window is None:
        return None
    if isinstance(quiet_hours, str) and quiet_hours == NO_HOURS and send_window is None:
        return NO_HOURS
    try:
        quiet = None if quiet_hours is None else Hours.parse(quiet_hours)
        window = None if send_window is None else Hours.parse(send_window, field="send_window")
        check_hours(quiet, window)
    except InvalidValue as refused:
        raise InvalidDraft(refused.field, refused.problem, refused.accepted) from None
    if window is not None:
        quiet = window.complement
    return str(quiet) if quiet else NO_HOURS


def checked_body(body: object, settings: Settings) -> tuple[Body, str]:
    """Return a body as it is stored, and its JSON."""
    return check_body(body, max_bytes=settings.body_max_bytes, max_depth=settings.body_max_depth)


def known_channel(channel: object, settings: Settings) -> str:
    channel = channel if type(channel) is str else plain(channel)
    if not isinstance(channel, str) or channel not in settings.channels:
        raise UnknownChannel(channel, sorted(settings.channels))
    return channel


def checked_scopes(scopes: object, settings: Settings) -> dict[str, str]:
    if scopes is None:
        return {}
    accepted = f"names by kind; the settings have {', '.join(settings.scopes) or 'no kinds'}"
    if not isinstance(scopes, Mapping):
        raise InvalidDraft("scopes", kind_of(scopes), accepted)
    checked = {}
    for kind, name in ((plain(kind), name) for kind, name in scopes.items()):
        if not isinstance(kind, str) or kind not in settings.scopes:
            raise InvalidDraft("scopes", f"there is no kind {quoted(kind)}", accepted)
        checked[kind] = check_text(f"scopes.{kind}", name)
    return checked


@dataclass(kw_only=True)
class DraftValidator:
    """Judges every field of drafts, as the transports that carry them and their status do, too.

    Two types may judge a body: that of the caller's :class:`Channel`, which takes Python values,
    and that which the settings name for the channel, which takes the JSON of any caller. Where they
    are the same type, it judges once.
    """

    settings: Settings
    templates: Templates
    check: Check

    def validate(self, draft: Draft, *, now: datetime) -> ValidDraft:
        """Return a draft as it is stored. Its times are judged by :func:`judge_times`.

        Raises InvalidDraft, and InvalidValue for a type or a template that cannot be used at all.
        """
        if not isinstance(draft, Draft):
            raise InvalidDraft("draft", kind_of(draft), "a Draft")
        given_body = None
        if (
            type(draft.channel) is not str
            or draft.channel in self.settings.body_types.channels
            or (draft.body is None or draft.template is not None or draft.data is not None)
        ):
            draft, given_body = self._prepared(draft)
        valid = validate_fields(draft, settings=self.settings, now=now, given_body=given_body)
        self.check(valid.channel, valid.recipient, valid.body)
        if valid.status_url is not None:
            try:
                self.check(self.settings.status_channel, valid.status_url, {})
            except InvalidDraft as refused:
                raise InvalidDraft("status_url", refused.problem, refused.accepted) from None
        return valid

    def body(self, draft: Draft) -> Body:
        """Return the body of a draft as it is stored."""
        prepared, _ = self._prepared(draft)
        body, _ = checked_body(prepared.body, self.settings)
        self.check(str(prepared.channel), prepared.recipient, body)
        return body

    def _prepared(self, draft: Draft) -> tuple[Draft, Body | None]:
        """Return the draft with its body as it is stored and its channel by name.

        And the body that the caller gave, where a type has made another one of it.
        """
        own = None
        if isinstance(draft.channel, Channel):
            own = draft.channel.body_type
            draft = replace(draft, channel=draft.channel.name)
        draft = self.templates.fill(draft)
        general = self.settings.body_types.of(draft.channel)
        body, given_body = draft.body, None
        if body is None or (own is None and general is None):
            return draft, None
        if own is not None:
            body, given_body = self._read(own, body, is_json=draft.template is not None)
        if general is not None and (own is None or general.type != own.type):
            body, written = self._read(general, body, is_json=isinstance(body, Mapping))
            given_body = written if given_body is None else given_body
        return replace(draft, body=body), given_body

    def _read(self, kind: BodyType, body: AnyBody, *, is_json: bool) -> tuple[Body, Body]:
        """Return a body as its type reads it, and as it was given.

        Where what was given is not all JSON, it is as the type writes it.
        """
        if is_json:
            checked, text = checked_body(body, self.settings)
            return kind.read_json(text), checked
        read, written = kind.read(body)
        try:
            return read, checked_body(body, self.settings)[0]
        except InvalidDraft:
            return read, written
