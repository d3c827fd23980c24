"""Schedule: a valid value, or an error that names the field. Nothing outside is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dispatcher import sendtime
from dispatcher.errors import InvalidDraft, InvalidSendTime, UnknownChannel
from dispatcher.message import Body, Draft, check_body, check_text, fingerprint
from dispatcher.settings import Settings

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidDraft:
    """A draft in which everything is decided but its place.

    ``send_at`` is the instant asked for and ``latest`` the last one it may be shifted to, None
    when it may not. ``fingerprint`` is a digest of everything the caller asked for, None without
    an idempotency key; two submits with one key must agree in it.
    """

    channel: str
    recipient: str
    scope: str
    body: Body = field(repr=False)
    send_at: datetime
    latest: datetime | None
    expires_at: datetime | None
    idempotency_key: str | None
    fingerprint: str | None


def schedule(draft: Draft, *, settings: Settings, now: datetime) -> ValidDraft:
    """Judge every field of ``draft`` but the order of its times, which :func:`judge_times` does.

    A repeated call with an idempotency key may come when a time has passed; it still gets its
    message. Raises InvalidDraft, InvalidSendTime, UnknownChannel.
    """
    if not isinstance(draft.channel, str) or draft.channel not in settings.channels:
        raise UnknownChannel(str(draft.channel)[:80], sorted(settings.channels))
    recipient = check_text("recipient", draft.recipient)
    scope = recipient if draft.scope is None else check_text("scope", draft.scope)
    if draft.idempotency_key is not None:
        check_text("idempotency_key", draft.idempotency_key)
    body = check_body(
        draft.body, max_bytes=settings.body_max_bytes, max_depth=settings.body_max_depth
    )
    send_at, asked = _send_time(draft, now, settings.max_horizon)
    expires_at = _expiry(draft)
    digest = None
    if draft.idempotency_key is not None:
        digest = fingerprint(
            channel=draft.channel,
            recipient=recipient,
            scope=scope,
            body=body,
            time=asked,
            expires_at=expires_at,
        )
    return ValidDraft(
        channel=draft.channel,
        recipient=recipient,
        scope=scope,
        body=body,
        send_at=send_at,
        latest=_latest(draft, expires_at, now + settings.max_horizon),
        expires_at=expires_at,
        idempotency_key=draft.idempotency_key,
        fingerprint=digest,
    )


def judge_times(valid: ValidDraft, *, now: datetime) -> None:
    """Raise InvalidSendTime unless the send time is to come, and expiry and latest after it."""
    sendtime.check_not_past(valid.send_at, now=now)
    if valid.expires_at is not None and valid.expires_at <= valid.send_at:
        problem = f"{valid.expires_at.isoformat()} is not after the send time"
        raise InvalidSendTime("expires_at", problem, "a later time")
    if valid.latest is not None and valid.latest < valid.send_at:
        problem = f"{valid.latest.isoformat()} is before the send time"
        raise InvalidSendTime("latest", problem, "a later time")


def _send_time(draft: Draft, now: datetime, farthest: timedelta) -> tuple[datetime, str]:
    """Return the instant asked for, and the wish in a form that a repeated call shares."""
    if (draft.send_at is None) == (draft.send_in is None):
        given = "neither" if draft.send_at is None else "both"
        raise InvalidSendTime("send_at", f"{given} of send_at and send_in given", "one of them")
    if draft.send_in is not None:
        _no_zone(draft)
        send_at = sendtime.after(draft.send_in, now=now)
        asked, name = f"in {draft.send_in // _MILLISECOND} ms", "send_in"
    elif draft.send_at is not None:
        send_at = sendtime.parse(draft.send_at, zone=draft.zone, fold=draft.fold)
        asked, name = send_at.isoformat(), "send_at"
    sendtime.check_not_too_far(send_at, now=now, farthest=farthest, field=name)
    return send_at, asked


def _expiry(draft: Draft) -> datetime | None:
    if draft.expires_at is None:
        return None
    return _other_time(draft, draft.expires_at, "expires_at")


def _latest(draft: Draft, expires_at: datetime | None, farthest: datetime) -> datetime | None:
    if draft.on_conflict not in ("reject", "shift"):
        raise InvalidDraft("on_conflict", repr(draft.on_conflict)[:80], "'reject' or 'shift'")
    if draft.on_conflict == "reject":
        if draft.latest is not None:
            raise InvalidDraft("latest", "given without on_conflict='shift'", "none")
        return None
    latest = farthest
    if draft.latest is not None:
        latest = min(_other_time(draft, draft.latest, "latest"), farthest)
    return latest if expires_at is None else min(latest, expires_at - _MILLISECOND)


def _other_time(draft: Draft, value: datetime | str, name: str) -> datetime:
    return sendtime.parse(
        value, zone=draft.zone, fold=draft.fold, field=name, zone_for_local_only=True
    )


def _no_zone(draft: Draft) -> None:
    """Refuse zone and fold where no local time is given that they could belong to."""
    if draft.expires_at is None and draft.latest is None:
        for name, value in (("zone", draft.zone), ("fold", draft.fold)):
            if value is not None:
                raise InvalidSendTime(name, "given with send_in", "a zone and fold for local times")
