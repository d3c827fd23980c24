"""Filters of messages, and the pages of a listing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Self, TypedDict
from uuid import UUID

from dispatcher.errors import InvalidDraft, kind_of, plain, quoted
from dispatcher.message import (
    MAX_CAMPAIGN,
    MAX_EVENT,
    MAX_PRIORITY,
    MAX_RECIPIENT,
    Message,
    Status,
    check_recipient,
    check_text,
)
from dispatcher.times import send_time


class Wanted(TypedDict, total=False):
    """Filters of messages. A message matches if it matches all of them.

    The promised time lies at or after ``from_at`` and before ``until_at``; both are given as
    ``send_at`` of a submit, with ``zone`` for local times, or as a date: the beginning of that day
    in the zone, without one in UTC. ``channel`` is one, or several of which one is the message's.
    ``scopes`` are further scopes that a message counts against, by kind: those of its submit, as in
    ``{"tenant": "acme"}``, ``recipient.<channel>`` and ``channel.<channel>``. ``key_prefix`` is the
    beginning of the idempotency key. ``overdue`` messages are scheduled and have been due for
    longer than ``enqueue_grace``. ``priority_from`` is the least priority. ``made_after`` is the
    id of a message: later ones match. Any other filter is a TypeError.
    """

    status: Status | str | None
    channel: str | Sequence[str] | None
    recipient: str | None
    scope: str | None
    scopes: Mapping[str, str] | None
    campaign: str | None
    event: str | None
    priority_from: int | None
    idempotency_key: str | None
    key_prefix: str | None
    from_at: datetime | date | str | None
    until_at: datetime | date | str | None
    zone: str | None
    overdue: bool
    made_after: UUID | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Validated filters of messages. A filter that is None or empty matches every message."""

    status: Status | None = None
    channels: tuple[str, ...] = ()
    recipient: str | None = None
    scope: str | None = None
    scopes: tuple[tuple[str, str], ...] = ()
    campaign: str | None = None
    event: str | None = None
    priority_from: int | None = None
    idempotency_key: str | None = None
    key_prefix: str | None = None
    from_at: datetime | None = None
    until_at: datetime | None = None
    overdue: bool = False
    made_after: UUID | None = None

    @classmethod
    def of(cls, wanted: Wanted) -> Self:
        """Validate filters. Raises InvalidDraft, and TypeError for an unknown one."""
        for name in wanted.keys() - Wanted.__annotations__.keys():
            known = ", ".join(Wanted.__annotations__)
            raise TypeError(f"there is no filter {name!r}; the filters are {known}")
        status, zone = wanted.get("status"), wanted.get("zone")
        if zone is not None:
            send_time.check_zone(zone)
        overdue = wanted.get("overdue", False)
        if not isinstance(overdue, bool):
            raise InvalidDraft("overdue", kind_of(overdue), "True or False")

        def text(name: str, longest: int = MAX_RECIPIENT) -> str | None:
            value = wanted.get(name)
            return None if value is None else check_text(name, value, longest=longest)

        recipient, made_after = wanted.get("recipient"), wanted.get("made_after")
        lowest = wanted.get("priority_from")
        chosen = cls(
            status=None if status is None else read_status(status),
            channels=_channels(wanted.get("channel")),
            recipient=None if recipient is None else check_recipient(recipient),
            scope=text("scope"),
            scopes=_scopes(wanted.get("scopes")),
            campaign=text("campaign", MAX_CAMPAIGN),
            event=text("event", MAX_EVENT),
            priority_from=None if lowest is None else check_priority(lowest, "priority_from"),
            idempotency_key=text("idempotency_key"),
            key_prefix=text("key_prefix"),
            from_at=_instant("from_at", wanted.get("from_at"), zone),
            until_at=_instant("until_at", wanted.get("until_at"), zone),
            overdue=overdue,
            made_after=None if made_after is None else id_of(made_after, "made_after"),
        )
        if chosen.from_at and chosen.until_at and chosen.from_at >= chosen.until_at:
            raise InvalidDraft("until_at", "is not later than from_at", "a later time")
        if overdue and chosen.status not in (None, Status.SCHEDULED):
            raise InvalidDraft("overdue", f"given with status {chosen.status}", "one of them")
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some messages, newest first. ``after`` gets the next page, None at the end.

    A page that has fewer messages than were asked for and is not the last one ended because it took
    too long: the messages until ``after`` were looked through, and none of those behind it.
    """

    messages: tuple[Message, ...]
    after: UUID | None

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


def id_of(value: UUID | str, field: str = "id") -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        if isinstance(value, str):
            return UUID(plain(value))
    except ValueError:
        pass
    raise InvalidDraft(field, f"{quoted(value)} is no message id", "a UUID")


def check_priority(value: object, field: str = "priority") -> int:
    """Return ``value`` if it is a whole number from -100 to 100. Raises InvalidDraft."""
    if isinstance(value, int) and type(value) is not bool:
        number = int.__int__(value)
        if -MAX_PRIORITY <= number <= MAX_PRIORITY:
            return number
    raise InvalidDraft(field, quoted(value), "a whole number from -100 to 100")


def read_number(value: object) -> Any:
    """Return the whole number that a text writes; anything else as it is, for a check to refuse."""
    is_number = isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,9}", value)
    return int(str(value)) if is_number else value


def ids_of(values: Iterable[UUID | str]) -> list[UUID]:
    if not isinstance(values, Iterable):
        raise InvalidDraft("message_ids", kind_of(values), "ids of messages")
    return [id_of(value) for value in values]


def read_status(status: Status | str) -> Status:
    status = plain(status)
    if isinstance(status, str) and status in tuple(Status):
        return Status(status)
    raise InvalidDraft("status", f"there is no status {quoted(status)}", ", ".join(Status))


def _channels(channel: str | Sequence[str] | None) -> tuple[str, ...]:
    if channel is None:
        return ()
    names = channel if isinstance(channel, list | tuple) else [channel]
    if not names:  # an empty filter matches all messages: here it is probably a mistake
        raise InvalidDraft("channel", "an empty list", "a channel, or several")
    return tuple(check_text("channel", name) for name in names)


def _scopes(scopes: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if scopes is None:
        return ()
    if not isinstance(scopes, Mapping):
        raise InvalidDraft("scopes", kind_of(scopes), "names by kind")
    return tuple(
        sorted(
            (check_text("scopes", kind), check_text(f"scopes.{kind}", name))
            for kind, name in scopes.items()
        )
    )


def _instant(field: str, time: datetime | date | str | None, zone: str | None) -> datetime | None:
    return None if time is None else send_time.parse_time_or_date(time, zone=zone, field=field)


def read_scopes(texts: Iterable[str], *, field: str) -> dict[str, str]:
    scopes: dict[str, str] = {}
    for text in texts:
        kind, _, name = text.partition("=")
        if not (kind and name):
            raise InvalidDraft(field, f"cannot read {quoted(text)}", "KIND=NAME")
        if kind in scopes:
            problem = f"{quoted(kind)} is given more than once"
            raise InvalidDraft(field, problem, "one KIND=NAME of each kind")
        scopes[kind] = name
    return scopes
