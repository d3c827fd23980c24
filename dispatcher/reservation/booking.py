"""The values of a booking: what is asked for, its legs, and the reservation or the refusal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID, uuid4

from dispatcher.errors import DuplicateUnderWay, IdempotencyConflict, SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import AnyQuota
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation.encoding import Rules, member_of, new_tail
from dispatcher.scope import Scope
from dispatcher.times.quiet_hours import Hours

EVERYONE = "*"
"""The token that stands for all submits with a key."""


class Terms(NamedTuple):
    """What a message's time must meet: room in every scope, outside its recipient's quiet hours.

    Each of ``scopes``, at least one, is of a kind that has quotas; ``zone`` is the recipient's.
    Places that a quota keeps are free to a message of enough ``priority`` only.
    """

    scopes: tuple[Scope, ...]
    zone: str = "UTC"
    quiet: Hours | None = None
    priority: int = 0


def planned_id(message_id: UUID) -> UUID:
    """Return an id of version 8, which marks a draft of a plan. Messages have version 7."""
    return UUID(int=message_id.int & ~(0xF << 76) | 8 << 76)


def is_planned_id(message_id: UUID) -> bool:
    return message_id.version == 8  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class Submit:
    """One call of submit with an idempotency key. Duplicate submits share the ``name``.

    ``supersedes`` is the message that ended unsent and had the key; its submits do not count. Those
    that have read an event before it moved want another time, and have another ``event_token``.
    """

    key: str
    fingerprint: str
    token: str = field(default_factory=lambda: uuid4().hex)
    supersedes: UUID | None = None
    event_token: str | None = None

    @property
    def name(self) -> str:
        name = self.key if self.supersedes is None else f"{self.key}\0{self.supersedes}"
        return name if self.event_token is None else f"{name}\0\0{self.event_token}"


class Leg(NamedTuple):
    """Those scopes of a message that lie in one shard; one script judges their windows together.

    All steps of a judgement are by these ``rules``.
    """

    keys: ShardKeys
    terms: Terms
    scopes: tuple[Scope, ...]
    rules: Rules

    @property
    def windows(self) -> list[str]:
        return [self.keys.window(scope.name, scope.kind) for scope in self.scopes]


class BookingRequest(NamedTuple):
    """A message to book: at ``asked_ms``, or in the first slot up to ``latest_ms``.

    ``tail`` is that of the reservation, empty unless it is one of a move. While a move is under
    way, ``left`` is the present reservation, with ``left_tail``; it counts as free, and stays.
    So do those ``leaving``: of messages that are moved with it, all or none.
    """

    message_id: UUID
    terms: Terms
    asked_ms: int
    latest_ms: int
    submit: Submit | None = None
    tail: str = ""
    left_tail: str | None = None
    leaving: tuple[bytes, ...] = ()

    @property
    def member(self) -> bytes:
        return member_of(self.message_id, self.tail)

    @property
    def left(self) -> bytes:
        return b"" if self.left_tail is None else member_of(self.message_id, self.left_tail)

    def moving(self) -> BookingRequest:
        """Return the request for a second reservation of the message that has this one."""
        return self._replace(tail=new_tail(), left_tail=self.tail)

    def renewed(self) -> BookingRequest:
        """Return the same request with another member and token.

        A late copy of a release then takes away nothing that is booked after it.
        """
        if self.left_tail is not None:
            return self._replace(tail=new_tail())
        message_id = planned_id(new_id()) if is_planned_id(self.message_id) else new_id()
        submit = self.submit and replace(self.submit, token=uuid4().hex)
        return self._replace(message_id=message_id, submit=submit)


class Slot(NamedTuple):
    """A booked time. The id is that of a duplicate submit where that booked first.

    ``request`` is what was booked: another one than was asked where that was renewed or is a move.
    """

    message_id: UUID
    at_ms: int
    request: BookingRequest

    @property
    def is_duplicate(self) -> bool:
        return self.message_id != self.request.message_id

    def for_everyone(self) -> Slot:
        """Return the slot as owned by all submits with its key: a release ends it for all."""
        submit = self.request.submit and replace(self.request.submit, token=EVERYONE)
        return self._replace(request=self.request._replace(submit=submit))

    @property
    def booked(self) -> BookingRequest:
        """The request for this time alone, under the id that has it."""
        return self.request._replace(
            message_id=self.message_id, asked_ms=self.at_ms, latest_ms=self.at_ms
        )


Refusal = SlotRefused | IdempotencyConflict | DuplicateUnderWay
Answer = Slot | Refusal
"""What a booking comes to."""


class Blocked(NamedTuple):
    """Why a time is refused. Before ``until_ms`` none fits; in the end it is the next slot.

    ``scope`` and ``quota`` are None where a blackout is the reason.
    """

    until_ms: int
    scope: Scope | None
    quota: AnyQuota | None
    conflicting: tuple[UUID, ...]
