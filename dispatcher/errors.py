"""Every error the dispatcher raises, in one tree.

The first sentence of a class's documentation is its text for callers by HTTP who may not see more.

::

    DispatcherError
    ├── InvalidValue              a value was refused before anything was touched (a ValueError)
    │   ├── InvalidDraft          … in a submitted message
    │   │   ├── InvalidSendTime
    │   │   ├── Suppressed        the recipient has opted out
    │   │   └── UnknownChannel
    │   └── InvalidSettings       … in the configuration
    │       └── MissingExtra      … or it needs libraries that are not installed
    ├── SlotRefused               the time asked for does not fit; names the next slot
    │   ├── QuotaExceeded         … a quota is full around it
    │   └── QuietHours            … it lies in quiet hours
    ├── BatchRefused              another draft of the same all-or-nothing batch was refused
    ├── IdempotencyConflict       the key belongs to a message with other content
    ├── MessageNotFound
    ├── TooLate                   the message has left ``scheduled``
    ├── MessageChanged            another change came between: read it again
    ├── LimitReached              a limiter gave no permit, or none in time
    ├── Unavailable               a server did not answer; safe to try again
    │   ├── ReservationsUnavailable
    │   │   └── DuplicateUnderWay another submit with the same key is under way
    │   ├── LimitersUnavailable
    │   ├── QueueUnavailable
    │   ├── EmbeddedUnavailable
    │   └── StoreUnavailable
    │       └── OutcomeUnknown    the message may have been stored
    └── DeliveryError             raised by transports
        ├── TemporaryFailure
        ├── PermanentFailure
        └── PerhapsSent           the provider got it, and the outcome is unknown

Errors have their data as attributes and in one sentence. No text and no attribute contains a body
or a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pkgutil import resolve_name
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")
ErrorT = TypeVar("ErrorT", bound=BaseException)

DISTRIBUTION = "quota-dispatcher"
"""The name of the distribution on PyPI. The package and the command are ``dispatcher``."""
_SHOWN_CONFLICTS = 3
_LONGEST_VALUE = 80
_LONGEST_PROBLEM = 400


class DispatcherError(Exception):
    """Base of all errors of this package. All can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), *self.args), self.__dict__


def _unpickled(kind: type[DispatcherError], *args: Any) -> DispatcherError:
    error = kind.__new__(kind, *args)
    error.args = args  # one that is an OSError, too, leaves that to __init__
    return error


class InvalidValue(DispatcherError, ValueError):
    """A value was refused; nothing was reserved, stored or sent.

    ``field`` names the parameter or setting, ``problem`` what is wrong with the value, and
    ``accepted`` the values that are accepted.
    """

    def __init__(self, field: str, problem: str, accepted: str) -> None:
        field, problem = cut(field), cut(problem, _LONGEST_PROBLEM)  # a body's keys may be long
        super().__init__(f"{field}: {problem}; accepted: {accepted}")
        self.field = field
        self.problem = problem
        self.accepted = accepted


class InvalidDraft(InvalidValue):
    """A field of a submitted message was refused."""


class InvalidSendTime(InvalidDraft):
    """The send time is unreadable, ambiguous, skipped by a clock change, past or too far away."""


class Suppressed(InvalidDraft):
    """The recipient has opted out of ``channel``, or of everything. Nothing is sent to it.

    The text does not name the recipient.
    """

    def __init__(self, channel: str) -> None:
        super().__init__(
            "recipient", f"has opted out of {quoted(channel)}", "a recipient that has not opted out"
        )
        self.channel = channel


class UnknownChannel(InvalidDraft):
    """The settings have no channel of that name. ``known`` lists their channels."""

    def __init__(self, channel: object, known: Sequence[str]) -> None:
        names = ", ".join(known)
        super().__init__("channel", f"there is no channel {quoted(channel)}", f"one of {names}")
        channel = plain(channel)
        is_shown = isinstance(channel, str) and channel.isprintable()
        self.channel = cut(str(channel)) if is_shown else quoted(channel)
        self.known = tuple(known)


class InvalidSettings(InvalidValue):
    """The configuration contradicts itself or has a value that cannot be used."""


class MissingExtra(InvalidSettings):
    """A setting, a command or a call needs libraries that are not installed.

    ``extra`` of the distribution brings them; ``accepted`` begins with the command to install it.
    """

    def __init__(self, extra: str, field: str, problem: str, accepted: str) -> None:
        super().__init__(field, problem, accepted)
        self.extra = extra


class SlotRefused(DispatcherError):
    """The time asked for does not fit. No reservation was made, and none was changed.

    ``send_at`` is the time asked for and ``next_slot`` the first time at or after it that fits
    every quota and lies outside quiet hours (both aware UTC). ``latest`` is the last time to which
    a shift may go, by ``latest``, the expiry or ``max_horizon``; None without a shift.
    """

    latest: datetime | None = None

    def __init__(
        self, problem: str, send_at: datetime, next_slot: datetime, latest: datetime | None
    ) -> None:
        text = f"{send_at.isoformat()} {problem}; the next free slot is {next_slot.isoformat()}"
        if latest is not None and next_slot > latest:
            text += f", later than latest ({latest.isoformat()})"
        super().__init__(text)
        self.send_at = send_at
        self.next_slot = next_slot
        if latest is not None:  # else no problem of HTTP has it
            self.latest = latest


class QuotaExceeded(SlotRefused):
    """The time asked for would break a quota.

    ``quota`` is the quota as text ("1/minute"), ``scope`` whose capacity is full, ``most`` how many
    places it has for the message then, where it keeps some or grows (else None), and
    ``conflicting`` the ids of the messages in the way, at most 100 of them. In a plan, ``drafts``
    of the same plan may be in the way, too, which have no ids yet: the text says how many.
    """

    drafts: int = 0
    most: int | None = None

    def __init__(
        self,
        *,
        quota: str,
        scope: str,
        send_at: datetime,
        conflicting: Sequence[UUID],
        next_slot: datetime,
        latest: datetime | None = None,
        drafts: int = 0,
        most: int | None = None,
    ) -> None:
        shown = ", ".join(str(message_id) for message_id in conflicting[:_SHOWN_CONFLICTS])
        more = len(conflicting) - _SHOWN_CONFLICTS
        if more > 0:
            shown += f" and {more} more"
        if drafts:
            self.drafts = drafts
            planned = f"{drafts} earlier draft{'s' * (drafts > 1)} of the plan"
            shown = f"{shown}, and {planned}" if shown else planned
        has = ""
        if most is not None:
            self.most = most
            has = f", which has {most} places for it then"
        problem = f"does not fit the quota {quota} of {quoted(scope)}{has}: in the way: {shown}"
        super().__init__(problem, send_at, next_slot, latest)
        self.quota = quota
        self.scope = scope
        self.conflicting = tuple(conflicting)


class QuietHours(SlotRefused):
    """The time asked for lies in quiet hours.

    ``quiet_hours`` is their text ("21:00-08:00") and ``zone`` the zone whose clocks they go by.
    """

    def __init__(
        self,
        *,
        quiet_hours: str,
        zone: str,
        send_at: datetime,
        next_slot: datetime,
        latest: datetime | None = None,
    ) -> None:
        problem = f"lies in the quiet hours {quiet_hours} of {zone}"
        super().__init__(problem, send_at, next_slot, latest)
        self.quiet_hours = quiet_hours
        self.zone = zone


class IdempotencyConflict(DispatcherError):
    """The idempotency key was used before, for other content. Nothing was changed.

    ``message_id`` is the message the key belongs to; it may still be on its way into the store. It
    is None where an earlier draft of a plan or of an atomic batch has the key: that is not stored.
    """

    def __init__(self, key: str, message_id: UUID | None) -> None:
        owner = "an earlier draft" if message_id is None else f"message {message_id}"
        super().__init__(
            f"idempotency key {quoted(key)} belongs to {owner}, which has other content"
        )
        self.key = key
        self.message_id = message_id


class BatchRefused(DispatcherError):
    """Another draft of the same all-or-nothing batch was refused, so this one was not accepted.

    ``number`` is the index of the first refused draft, from 0.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"nothing was accepted, because draft {number} was refused")
        self.number = number


class MessageNotFound(DispatcherError):
    """No message has that id: it was never accepted, or it was pruned."""

    def __init__(self, message_id: UUID) -> None:
        super().__init__(f"there is no message {message_id}")
        self.message_id = message_id


class TooLate(DispatcherError):
    """The message can no longer be changed.

    ``status`` is its status, ``erased``, or why a failed one stays so: ``past its expiry``, or a
    later message has its idempotency key. The text says which status the call ``needs``,
    unless it is ``scheduled``.
    """

    def __init__(self, message_id: UUID, status: str, *, needs: str = "") -> None:
        text = f"message {message_id} is already {status}"
        super().__init__(f"{text}; this call needs a {needs} message" if needs else text)
        self.message_id = message_id
        self.status = status


class MessageChanged(DispatcherError):
    """The message is not as the caller had read it any more. This call changed nothing.

    Read it again, and decide anew.
    """

    def __init__(self, message_id: UUID) -> None:
        super().__init__(f"message {message_id} has changed since it was read")
        self.message_id = message_id


class LimitReached(DispatcherError):
    """A limiter gave no permit, or none in time. No permit was counted.

    ``limit`` is the one that makes the caller wait longest, as text ("5/minute"), ``others`` are
    the other limits that refused, ``retry_after`` is how long to wait before the next try, and
    ``reset_at`` is when the limit is unused again (aware UTC). ``retry_after`` is ``timedelta.max``
    where the call asked for more permits than the limit ever gives at once. With ``is_upper_bound``
    the text says "at most": a hold may be returned before it ends.
    """

    def __init__(
        self,
        *,
        limit: str,
        retry_after: timedelta,
        reset_at: datetime,
        others: tuple[str, ...] = (),
        is_upper_bound: bool = False,
    ) -> None:
        if retry_after == timedelta.max:
            problem = f"the limit {limit} never gives so many permits at once"
        else:
            wait = f"{'at most ' * is_upper_bound}{retry_after.total_seconds():g} s"
            problem = f"the limit {limit} is reached; try again in {wait}"
        super().__init__(f"{problem}; also refused by {', '.join(others)}" if others else problem)
        self.limit = limit
        self.others = others
        self.retry_after = retry_after
        self.reset_at = reset_at
        self.is_upper_bound = is_upper_bound


class Unavailable(DispatcherError):
    """A server did not answer as it must. Trying again later is safe.

    ``reason`` says what is wrong, without secrets; ``remedy`` what to do, empty where unknown.
    """

    what = "a server"
    remedy: str = ""

    def __init__(self, reason: str, *, remedy: str = "") -> None:
        text = f"{reason}; {remedy}" if remedy else reason
        super().__init__(f"{self.what} unavailable: {text}")
        self.reason = reason
        if remedy:
            self.remedy = remedy


class ReservationsUnavailable(Unavailable):
    """Redis cannot make a reservation now. Nothing was stored.

    ``retry_after`` is how long to wait before the next try; None where that is unknown. It is known
    while the windows are being rebuilt.
    """

    what = "reservations"

    def __init__(
        self, reason: str, *, remedy: str = "", retry_after: timedelta | None = None
    ) -> None:
        super().__init__(reason, remedy=remedy)
        self.retry_after = retry_after


class DuplicateUnderWay(ReservationsUnavailable):
    """Another submit with the same idempotency key has reservations and is not stored yet.

    Raised only where scopes lie in several shards; in a batch only this draft is refused. Nothing
    was stored. The other submit ends soon; if its process died, its reservations are released
    within ``reconcile_grace`` and a sweep.
    """

    def __init__(self) -> None:
        super().__init__("another submit with the same idempotency key is under way")


class LimitersUnavailable(Unavailable):
    """Redis cannot give a permit now. Nothing was sent."""

    what = "limiters"


class QueueUnavailable(Unavailable):
    """The broker accepted no task. The sweep enqueues the messages later."""

    what = "queue"


class EmbeddedUnavailable(Unavailable):
    """The embedded environment cannot start here, or did not start."""

    what = "embedded environment"


class StoreUnavailable(Unavailable):
    """The database did not execute a statement.

    After a submit, nothing was stored. ``refused`` is True where the database refused these values:
    then another try fails, too. ``timed_out`` is True where a statement took too long for it.
    """

    what = "store"

    def __init__(
        self, reason: str, *, refused: bool = False, timed_out: bool = False, remedy: str = ""
    ) -> None:
        super().__init__(reason, remedy=remedy)
        self.refused = refused
        self.timed_out = timed_out


class OutcomeUnknown(StoreUnavailable):
    """The connection broke while the message was being stored, and it cannot be read back.

    It may have been stored, and then it will be sent. Look up ``message_id`` once the database
    answers, or submit again with the same idempotency key.
    """

    def __init__(self, reason: str, message_id: UUID) -> None:
        super().__init__(f"{reason}; message {message_id} may have been stored: look it up")
        self.message_id = message_id


class DeliveryError(DispatcherError):
    """Raised by a transport: why a send failed."""


class TemporaryFailure(DeliveryError):
    """The provider did not accept the message now. ``retry_after`` is the least wait it asked for.

    With ``closes_channel`` the wait applies to the whole channel, as after a 429: no worker sends
    on it until then. Such an attempt uses up none: ``max_attempts`` rises by one, and a message
    without an expiry is tried again without end.
    """

    retry_after: timedelta | None = None
    closes_channel: bool = False

    def __init__(
        self,
        reason: str = "",
        retry_after: timedelta | None = None,
        *,
        closes_channel: bool = False,
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.closes_channel = closes_channel


class PermanentFailure(DeliveryError):
    """The provider will never accept this message."""


class PerhapsSent(DeliveryError):
    """The provider got the message and did not say whether it accepted it.

    The outcome of the attempt is unknown: with ``on_unknown="retry"`` another one follows under the
    same message id, with ``"hold"`` the message is held for a person to decide. Raise
    TemporaryFailure where the message certainly did not arrive.
    """


def install_line(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def needs(extra: str, field: str, *, what: str = "", instead: str = "") -> Iterator[None]:
    """Raise MissingExtra where an import inside lacks a library of ``extra``.

    ``field`` is the setting or the command that needs it, ``what`` names the part of it, and
    ``instead`` is what helps without the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", __package__}:
            raise
        problem = f"{what} needs {missing}, which is not installed".lstrip()
        remedy = f"{install_line(extra)}, or {instead}" if instead else install_line(extra)
        raise MissingExtra(extra, field, problem, remedy) from error


def load_named(field: str, path: str, accepted: str) -> Any:
    """Return what a setting names as ``package.module:attribute``. Raises InvalidSettings."""
    try:
        return resolve_name(path)
    except Exception as error:
        problem = f"cannot load {quoted(path)} ({type(error).__name__})"
        raise InvalidSettings(field, problem, accepted) from error


def refusal_of(load: Callable[[], object]) -> InvalidSettings | None:
    """Return the error of a setting that cannot be used, None for another one."""
    try:
        load()
    except InvalidSettings as error:
        return error
    return None


def kind_of(value: object) -> str:
    """Return the type of a value, for a sentence: "an int", "a str", "nothing" for None."""
    if value is None:
        return "nothing"
    name = cut(type(value).__name__, _LONGEST_VALUE) or "class without a name"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def alone(error: ErrorT) -> ErrorT:
    """Return an error without traceback and causes, which would keep much in memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def plain(value: T) -> T:
    """Return a text of any subclass, such as a member of an Enum, as the ``str`` of its value.

    Anything else stays as it is. Drivers, f-strings and templates read such texts differently.
    """
    return str.__str__(value) if isinstance(value, str) else value  # type: ignore[return-value]  # a T, too


def quoted(value: object) -> str:
    """Return a value for a sentence: its repr, on one line, of at most 80 characters.

    Of one whose repr fails it is the type; lengths and instants are written for people.
    """
    value = plain(value)
    try:
        if type(value) is str:
            text = repr(value[:_LONGEST_VALUE])
        else:
            text = str(value) if isinstance(value, timedelta | datetime) else repr(value)
            if isinstance(value, timedelta) and value < timedelta(0):
                text = f"-{-value}"  # Python writes -5 seconds as "-1 day, 23:59:55"
        text = cut(text, _LONGEST_VALUE)
        return text if text.isprintable() else cut(ascii(text), _LONGEST_VALUE)
    except Exception:  # noqa: BLE001 - the code of a caller's object may raise anything
        return kind_of(value)


def cut(text: str, longest: int = 200) -> str:
    """Return foreign text for a sentence: at most ``longest`` characters of it."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
