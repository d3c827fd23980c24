"""Series: messages that repeat by a rule. Each occurrence is an ordinary draft, booked ahead.

The key of an occurrence has the series' token and the nominal time, so that it is booked once. A
change gives the series another token: under the earlier one nothing is stored any more.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from hashlib import sha256
from itertools import islice
from secrets import token_hex
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError

from dispatcher.channel import Length
from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidSettings,
    InvalidValue,
    QuotaExceeded,
    StoreUnavailable,
    Unavailable,
    kind_of,
    load_named,
    quoted,
)
from dispatcher.faults import fault
from dispatcher.message import (
    Draft,
    Message,
    OnUnknown,
    Status,
    check_body,
    check_recipient,
    check_text,
    reason_of,
)
from dispatcher.quota import Quota
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.scope import Scope
from dispatcher.selection import Selection
from dispatcher.settings import Settings, refusal
from dispatcher.store.events import EventChanged
from dispatcher.store.listing import Listing
from dispatcher.store.lists import Pauses
from dispatcher.store.messages import GivenUp, Messages
from dispatcher.store.schema import PAUSED_EVENT
from dispatcher.store.series import SeriesRow, SeriesRows
from dispatcher.submission.changes import Cancellation
from dispatcher.submission.pipeline import Submitter
from dispatcher.submission.validation import SERIES, DraftValidator, Occurring, known_channel
from dispatcher.times.clock import MILLISECOND, Clock
from dispatcher.times.recurrence import Gap, Occurrence, Recurrence, Repeat
from dispatcher.times.send_time import (
    check_zone,
    from_ms,
    parse_time_or_date,
    to_ms,
    wall_or_instant,
)
from dispatcher.times.zones import DAY_MS, known_zone, rules

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCAL = "local"
MAX_NAME = 100
_AT_ONCE = 1_000
_ROUNDS = 20
_LEASE = timedelta(seconds=30)
_ON_ITS_WAY = timedelta(seconds=30)
_MOST_SKIPPED = 20
_MOST_JUDGED = 1_000
_MOST_A_DAY = 1_440
_NAMED_EVERY = timedelta(days=1)
_CALLABLE = "package.module:callable, which yields (address, zone, data)"
_OF_ONE = re.compile(":[0-9a-f]{16}$")
_INSTEAD = {"recipient": "recipients", "body": "template", "template": "body"}
"""What a change of one field takes away."""


class Recipient(NamedTuple):
    """Who gets each occurrence; ``zone`` counts where that of the series is ``"local"``.

    ``data`` is for the series' template, beside its own.
    """

    recipient: str
    zone: str | None = None
    data: dict[str, Any] | None = None


class Skipped(NamedTuple):
    """An occurrence that has no message, by its nominal time, and why."""

    nominal: str
    reason: str


class Series(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """A series as it is stored.

    ``rule`` has the words of RFC 5545; ``start`` is a wall time of ``zone``, or of each recipient's
    zone where that is ``"local"``. ``recipients`` may be a name in the setting
    ``series_recipients``. Until ``booked_until`` each occurrence is booked, or is among the last
    that were ``skipped``. The fields from ``channel`` on are those of its drafts.
    """

    name: str
    rule: str
    start: datetime
    zone: str
    gap: Gap = "after"
    repeat: Repeat = "first"
    recipients: Annotated[tuple[Recipient, ...], Field(min_length=1, max_length=10_000)] | str
    spread: Length | None = None
    conflict: Literal["shift", "skip", "refuse"] = "skip"
    window: Length | None = None
    missed: Literal["all", "last", "none"] = "last"
    booked_until: datetime | None = None
    skipped: tuple[Skipped, ...] = ()
    channel: str
    body: dict[str, Any] | None = Field(None, repr=False)
    template: str | None = None
    data: dict[str, Any] | None = Field(None, repr=False)
    scope: str | None = None
    scopes: dict[str, str] | None = None
    quiet_hours: str | None = None
    send_window: str | None = None
    on_unknown: OnUnknown | None = None
    expire_after: Length | None = None
    status_url: str | None = Field(None, repr=False)
    campaign: str | None = None
    priority: int | None = None
    quotas: Literal["none"] | None = None

    @classmethod
    def of(cls, row: SeriesRow) -> Self:
        stored = {name: row.definition[name] for name in cls.model_fields if name in row.definition}
        name = row.name.removeprefix(SERIES)
        return cls.model_validate(stored | {"name": name, "booked_until": row.booked_until})

    def row(
        self, now: datetime, booked_until: datetime, replaced: Sequence[tuple[str, str]] = ()
    ) -> SeriesRow:
        """Return a row that is due, with another token.

        ``replaced`` are earlier tokens: their occurrences from a nominal time on are cancelled.
        """
        definition = self.model_dump(
            mode="json", exclude={"name", "booked_until"}, exclude_none=True
        )
        definition["replaced"] = replaced
        return SeriesRow(SERIES + self.name, token_hex(6), definition, booked_until, now)

    @property
    def recurrence(self) -> Recurrence:
        return Recurrence(self.rule, self.start, self.gap, self.repeat)

    @property
    def message(self) -> dict[str, Any]:
        """The fields that all drafts share."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return {name: value for name, value in shared.items() if value is not None}


_SHARED = Series.model_fields.keys() & {field.name for field in fields(Draft)} - {"zone"}


@dataclass(kw_only=True)
class SeriesList:
    """Keeps series, and books their occurrences. Any number of processes may book."""

    settings: Settings
    clock: Clock
    rules: RuleBook
    series_rows: SeriesRows
    validator: DraftValidator
    submitter: Submitter
    messages: Messages
    listing: Listing
    pauses: Pauses
    cancellation: Cancellation

    def add(self, name: str, wish: Mapping[str, Any]) -> Series:
        name = check_text("name", name, longest=MAX_NAME)
        if isinstance(recipients := wish.get("recipients"), Iterator):  # it is read twice
            wish = {**wish, "recipients": [*recipients]}
        row = self.series_rows.get(SERIES + name)
        if row is None:
            series, now = self._read(name, wish), self.clock.now()
            self._check(series)
            row = series.row(now, now)
            if self.series_rows.add(row):
                return Series.of(row)
            row = self.series_rows.get(SERIES + name)
        if row is None or "removed" in row.definition:
            raise StoreUnavailable("the series of this name is being removed", remedy="try again")
        known = Series.of(row)
        start = wish.get("start")
        again = self._read(name, {**wish, "start": known.start if start is None else start})
        if known.model_copy(update={"booked_until": None, "skipped": ()}) != again:
            raise InvalidValue("name", f"there is a series {quoted(name)}", "another, or change")
        return known

    def get(self, name: str) -> Series:
        return Series.of(self._row(name))

    def all(self, after: str | None = None) -> Iterator[Series]:
        begin = "" if after is None else SERIES + check_text("after", after, longest=MAX_NAME)
        rows = self.series_rows.all(size=_AT_ONCE, after=begin)
        return (Series.of(row) for row in rows if "removed" not in row.definition)

    def change(
        self, name: str, wish: Mapping[str, Any], since: datetime | date | str | None
    ) -> Series:
        """Change the occurrences from ``since`` on, by default all that are to come.

        What comes within the horizon, or half a minute where that is shorter, may be on its way: it
        stays.
        """
        row = self._row(name)
        now = self.clock.now()
        before = Series.of(row)
        booked_until, earliest = (
            row.booked_until or now,
            now + min(self.settings.horizon, _ON_ITS_WAY),
        )
        if since is not None:
            since = parse_time_or_date(since, zone=self._zone(before, None), field="since")
        since = max(since or earliest, earliest)
        if since > max(booked_until, earliest):
            raise InvalidValue("since", f"{since.isoformat()} is not booked yet", "an earlier time")
        known = before.model_dump(exclude={"name", "booked_until", "skipped"})
        for field, instead in _INSTEAD.items():
            if wish.get(field) is not None:
                del known[instead]
        series = self._read(before.name, known | dict(wish))
        self._check(series)
        since = min(since, booked_until)  # what a pass books behind it is booked anew
        replaced = [*row.definition["replaced"], (row.token, since.isoformat())]
        changed = series.row(now, since, replaced)
        if not self.series_rows.change(row.token, changed):
            raise StoreUnavailable("another call has changed the series", remedy="try again")
        fault("series.after_change")
        self._cancel_replaced(changed)
        return Series.of(changed)

    def remove(self, name: str) -> int:
        """End a series; return how many of its messages were cancelled."""
        cancelled = self._remove(self._row(name))
        if cancelled is None:
            raise StoreUnavailable("another call has changed the series", remedy="try again")
        return cancelled

    def _remove(self, row: SeriesRow) -> int | None:
        """End a series, unless another call has changed it."""
        definition = {**row.definition, "removed": True}
        gone = row._replace(token=token_hex(6), due_at=self.clock.now(), definition=definition)
        if not self.series_rows.change(row.token, gone):
            return None
        fault("series.after_removal")
        return self._end(gone)

    def _end(self, row: SeriesRow) -> int:
        """Cancel what is left of a removed series, unless another process has done so meanwhile.

        Then what this one reads may belong to a new series of that name.
        """
        cancelled = 0
        for ids in self.listing.ids(
            Selection(event=row.name, status=Status.SCHEDULED), size=_AT_ONCE
        ):
            still = self.series_rows.get(row.name)
            if still is None or still.token != row.token:
                return cancelled
            cancelled += self._cancel(ids, "its series was removed")
        fault("series.after_cancel")
        if self.series_rows.remove(row.name, row.token):
            self.pauses.end(PAUSED_EVENT, row.name)
        return cancelled

    def forget(self, recipient: str) -> int:
        """Take a recipient out of every list; a series that has no other one ends.

        A pass that has read it before stores nothing more. Return how many messages of series that
        end were cancelled.
        """
        cancelled = 0
        for read in self.series_rows.all(size=_AT_ONCE):
            row: SeriesRow | None = read
            while row is not None and recipient in _addresses(row):
                if "removed" in row.definition:
                    cancelled += self._end(row)
                elif len(_addresses(row)) == 1:
                    cancelled += self._remove(row) or 0
                else:
                    self._take_out(row, recipient)
                row = self.series_rows.get(row.name)
        return cancelled

    def _take_out(self, row: SeriesRow, recipient: str) -> None:
        now = self.clock.now()
        booked_until = row.booked_until or now
        replaced = [*row.definition["replaced"], (row.token, booked_until.isoformat())]
        left = [who for who in row.definition["recipients"] if who[0] != recipient]
        definition = {**row.definition, "recipients": left, "replaced": replaced}
        changed = row._replace(token=token_hex(6), due_at=now, definition=definition)
        self.series_rows.change(row.token, changed)

    def pause(self, name: str) -> None:
        self.pauses.add(PAUSED_EVENT, self._row(name).name)

    def resume(self, name: str) -> int:
        """End a pause; return how many occurrences were missed meanwhile, and are cancelled."""
        row, now = self._row(name), self.clock.now()
        if (PAUSED_EVENT, row.name) not in {pause[:2] for pause in self.pauses.in_force()}:
            return 0
        missed: defaultdict[str, list[Message]] = defaultdict(list)
        selection = Selection(event=row.name, status=Status.SCHEDULED, until_at=now)
        for page in self.listing.pages(selection, size=_AT_ONCE):
            for message in page:
                missed[message.recipient].append(message)
        policy = Series.of(row).missed
        gone = [
            message.id
            for messages in missed.values()
            for message in _left_out(sorted(messages, key=lambda m: m.send_at), policy)
        ]
        cancelled = self._cancel(gone, "missed while its series was paused")
        self.pauses.end(PAUSED_EVENT, row.name)
        return cancelled

    def preview(self, name: str, count: int, zone: str | None) -> list[datetime]:
        series, now = self.get(name), to_ms(self.clock.now())
        zone = self._zone(series, zone)
        return [from_ms(at_ms) for at_ms, _ in series.recurrence.following(zone, now, count)]

    # Booking.

    def book_ahead(self) -> int:
        """Book what is due to be booked; return how many messages that made."""
        booked = 0
        for _ in range(_ROUNDS):
            now = self.clock.now()
            rows = self.series_rows.take_due(now, lease=_LEASE, limit=_AT_ONCE)
            if not rows:
                break
            fault("series.after_take")
            booked += self._book(rows, now)
        return booked

    def _book(self, rows: Sequence[SeriesRow], now: datetime) -> int:
        booked, failed, held_at = 0, set[str](), now
        opened: dict[str, tuple[Series, set[str]]] = {}
        skipped = defaultdict[str, list[Skipped]](list)
        drafts = self._wanted(rows, now, opened, failed)
        while batch := [*islice(drafts, _AT_ONCE)]:
            for draft, error in self._submitted(batch):
                if error is None:
                    booked += 1
                elif isinstance(error, EventChanged | GivenUp):
                    failed.add(draft.series)
                else:
                    skipped[draft.series].append(Skipped(draft.nominal, reason_of(error)))
            fault("series.after_batch")
            if (at := self.clock.now()) - held_at > _LEASE / 2:
                held_at = at
                self.series_rows.hold(rows, until=at + _LEASE)
        self.series_rows.advance([
            self._advanced(row, *opened[row.name], now, skipped[row.name])
            for row in rows if row.name in opened.keys() - failed
        ])  # fmt: skip
        return booked

    def _wanted(
        self,
        rows: Iterable[SeriesRow],
        now: datetime,
        opened: dict[str, tuple[Series, set[str]]],
        failed: set[str],
    ) -> Iterator[Occurring]:
        """Yield what is to be booked; note each series with the zones of its recipients."""
        for row in rows:
            try:
                if "removed" in row.definition:
                    self._end(row)
                    continue
                self._cancel_replaced(row)
                opened[row.name] = series, zones = Series.of(row), set[str]()
                yield from self._drafts(row, series, now, zones)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - a caller's list may raise anything
                # What it says may be an address.
                reason = str(error) if isinstance(error, InvalidSettings) else kind_of(error)
                log.error("%s was not booked, next try in 30 s: %s", row.name, reason)  # noqa: TRY400
                failed.add(row.name)

    def _submitted(
        self, batch: Sequence[Occurring]
    ) -> Iterator[tuple[Occurring, DispatcherError | None]]:
        """Submit what is not known yet; yield each draft with what refuses it."""
        known = self.messages.with_keys([draft.idempotency_key or "" for draft in batch])
        batch = [draft for draft in batch if draft.idempotency_key not in known]
        results = self.submitter.submit_many(batch, total=None, progress=None)
        for draft, result in zip(batch, results, strict=True):
            error = None if isinstance(result, Message) else result.error
            if isinstance(error, Unavailable) and not getattr(error, "refused", False):
                raise error
            if not isinstance(error, IdempotencyConflict):  # else another pass has booked it
                yield draft, error

    def _advanced(
        self,
        row: SeriesRow,
        series: Series,
        zones: Iterable[str],
        now: datetime,
        skipped: Sequence[Skipped],
    ) -> SeriesRow:
        if skipped:
            log.warning(
                "%s has no message for %d occurrences, first at %s: %s; see what it skipped",
                row.name, len(skipped), *skipped[0],
            )  # fmt: skip
        until, recurrence = self._until(series, now), series.recurrence
        first = [recurrence.first_from(zone, to_ms(until)) for zone in zones]
        coming = [from_ms(at_ms) for at_ms in first if at_ms is not None]
        # A pass at that very instant books it: ``until`` lies behind what is booked.
        due_at = min(coming) - (until - now) + MILLISECOND if coming else None
        if isinstance(series.recipients, str):
            due_at = now + _NAMED_EVERY
        kept = (*series.skipped, *skipped)[-_MOST_SKIPPED:]
        definition = {**row.definition, "skipped": kept, "replaced": []}
        booked_until = max(until, row.booked_until or until)
        return row._replace(booked_until=booked_until, due_at=due_at, definition=definition)

    def _until(self, series: Series, now: datetime) -> datetime:
        """Return until when a series is booked.

        A named list no further than ``retention``: an occurrence that was cancelled longer ago is
        no longer known, and would be booked again.
        """
        known = self.settings.retention if isinstance(series.recipients, str) else timedelta.max
        return now + min(self.settings.book_ahead, self.settings.max_horizon, known)

    def _drafts(
        self, row: SeriesRow, series: Series, now: datetime, zones: set[str]
    ) -> Iterator[Occurring]:
        """Yield the occurrences that are to be booked; note the zones of their recipients.

        A named list is read again each time: who is new in it gets all that is to come.
        """
        booked_until, until = row.booked_until or now, self._until(series, now)
        recurrence, is_named = series.recurrence, isinstance(series.recipients, str)
        since = max(
            min(booked_until, now) if is_named else booked_until,
            now - self.settings.series_catch_up,
        )
        spans: dict[str, list[Occurrence]] = {}
        for who in self._recipients(series):
            zone = self._zone(series, who.zone)
            if zone not in spans:
                zones.add(zone)
                spans[zone] = recurrence.between(zone, to_ms(since), to_ms(until))
            later = _spread_ms(series, who.recipient)
            times = [Occurrence(at_ms + later, nominal) for at_ms, nominal in spans[zone]]
            missed = _left_out([one for one in times if one.at_ms < to_ms(now)], series.missed)
            of_one = f":{_digest(who.recipient)}" if is_named or len(series.recipients) > 1 else ""
            for one in times[len(missed) :]:
                key = f"{SERIES}{row.token}:{one.nominal}{of_one}"
                yield Occurring(
                    **_message(series, who, zone, one, now),
                    idempotency_key=key,
                    nominal=one.nominal,
                    series=row.name,
                    series_token=row.token,
                )

    def _recipients(self, series: Series) -> Iterable[Recipient]:
        if not isinstance(series.recipients, str):
            return series.recipients
        path = self.settings.series_recipients.get(series.recipients, "")
        source = load_named(f"series_recipients.{series.recipients}", path, _CALLABLE)
        return self._well_formed(series, source())

    def _well_formed(self, series: Series, named: Iterable[Any]) -> Iterator[Recipient]:
        """Yield the recipients of a named list; what is none must not keep the others waiting."""
        left_out = 0
        for one in named:
            try:
                who = Recipient(one) if isinstance(one, str) else Recipient(*one)
                check_recipient(who.recipient)
                check_zone(self._zone(series, who.zone))
                dict(who.data or ())
            except (TypeError, ValueError, DispatcherError):
                left_out += 1
            else:
                yield who
        if left_out:
            log.warning("%s: %d entries of %s are left out: accepted is (address, zone, data)",
                        series.name, left_out, series.recipients)  # fmt: skip

    def _zone(self, series: Series, zone: str | None) -> str:
        return (zone or self.settings.zone) if series.zone == LOCAL else series.zone

    def _cancel_replaced(self, row: SeriesRow) -> None:
        for token, since in row.definition["replaced"]:
            prefix, from_at = f"{SERIES}{token}:", datetime.fromisoformat(since)
            old = Selection(event=row.name, key_prefix=prefix, status=Status.SCHEDULED)
            for page in self.listing.pages(old, size=_AT_ONCE):
                late = [one.id for one in page if _nominal_at(one, len(prefix)) >= from_at]
                self._cancel(late, "its series was changed")

    def _cancel(self, ids: Sequence[UUID], because: str) -> int:
        results = self.cancellation.cancel_many(ids, because=because)
        return sum(isinstance(result, Message) for result in results)

    def _row(self, name: str) -> SeriesRow:
        row = self.series_rows.get(SERIES + check_text("name", name, longest=MAX_NAME))
        if row is None or "removed" in row.definition:
            raise InvalidValue("name", f"there is no series {quoted(name)}", "that of a series")
        return row

    # What callers ask for.

    def _read(self, name: str, wish: Mapping[str, Any]) -> Series:
        """Return a series as it would be stored. Raises InvalidValue."""
        of = {"zone": self.settings.zone} | {k: v for k, v in wish.items() if v is not None}
        rule, until, count = (of.pop(part, None) for part in ("rule", "until", "count"))
        if "recipient" in of:
            if "recipients" in of:
                raise InvalidValue("recipients", "given together with recipient", "one of them")
            of["recipients"] = [of.pop("recipient")]
        recipients = of.get("recipients", "")
        if not isinstance(recipients, str) and isinstance(recipients, Iterable):
            of["recipients"] = [[who] if isinstance(who, str) else who for who in recipients]
        if not (isinstance(of["zone"], str) and of["zone"] == LOCAL):
            check_zone(of["zone"])
        start = of.setdefault("start", self.clock.now().replace(second=0, microsecond=0))
        of["start"], until = (
            wall_or_instant(moment, field) if isinstance(moment, str) else moment
            for field, moment in (("start", start), ("until", until))
        )
        try:
            series = Series(name=check_text("name", name, longest=MAX_NAME), rule="", **of)
            start = series.start
            if start.tzinfo is not None:
                zone = rules(self._zone(series, None))
                start = _shown(start, zone, "start").replace(tzinfo=None)
            if isinstance(until, datetime) and until.tzinfo is not None:
                until = _shown(until, UTC, "until")
            recurrence = Recurrence.parse(
                rule, start=start, until=until, count=count, gap=series.gap, repeat=series.repeat
            )
        except ValidationError as error:
            wrong = refusal(error, Series.model_fields)
            field = wrong.field.partition(".")[0]
            raise InvalidValue(field, wrong.problem, wrong.accepted) from None
        return series.model_copy(update={"rule": recurrence.rule, "start": start})

    def _check(self, series: Series) -> None:
        """Refuse what would never be booked; by the first occurrence of each recipient."""
        now, judged = self.clock.now(), set[str]()
        if isinstance(series.recipients, str):
            if series.recipients not in self.settings.series_recipients:
                accepted = ", ".join(self.settings.series_recipients) or "a list"
                problem = f"there is no {quoted(series.recipients)} in series_recipients"
                raise InvalidValue("recipients", problem, accepted)
            self._check_contents(series)
            return
        for who in series.recipients:
            zone = self._zone(series, who.zone)
            check_zone(zone, field="recipients")
            first_ms = series.recurrence.first_from(zone, to_ms(now))
            if first_ms is None:
                raise InvalidValue("rule", "has no occurrence from now on", "a rule that has one")
            draft = Draft(**_message(series, who, zone, Occurrence(first_ms, "Z"), now))
            sample = replace(draft, send_at=None, send_in=timedelta(0), latest=None)
            valid = self.validator.validated(sample, now=now)
            for scope in valid.terms.scopes if zone not in judged else ():
                self._check_density(series, zone, first_ms, scope)
            judged.add(zone)
        if series.conflict == "refuse":
            drafts = self._drafts(series.row(now, now), series, now, set())
            for refused in self.submitter.plan(drafts, total=None, progress=None).rejections:
                if not self._is_in_its_own_way(series, refused.error):
                    raise refused.error

    def _is_in_its_own_way(self, series: Series, error: DispatcherError) -> bool:
        """Tell whether messages of the series, which a change cancels, take part in a refusal."""
        if not isinstance(error, QuotaExceeded):
            return False
        rows = self.messages.movables(list(error.conflicting))
        return any(row.message.event == SERIES + series.name for row in rows.values())

    def _check_contents(self, series: Series) -> None:
        """Refuse what no recipient of a named list would get."""
        known_channel(series.channel, self.settings)
        if series.template is None:
            most, depth = self.settings.body_max_bytes, self.settings.body_max_depth
            check_body(series.body, max_bytes=most, max_depth=depth)
        elif series.body is not None:
            raise InvalidValue("body", "given together with template", "one of them")

    def _check_density(self, series: Series, zone: str, first_ms: int, scope: Scope) -> None:
        if len(series.recurrence.between(zone, first_ms, first_ms + DAY_MS)) > _MOST_A_DAY:
            raise InvalidValue("rule", f"has more than {_MOST_A_DAY} times a day", "fewer")
        for quota in self.rules.now().quotas(scope.kind, scope.name):
            if not isinstance(quota, Quota) or quota.count >= _MOST_JUDGED:
                continue
            times = series.recurrence.following(zone, first_ms, quota.count + 1)
            if len(times) > quota.count and times[-1].at_ms - first_ms < quota.length_ms:
                problem = f"is denser than the quota {quota} of {scope.kind or 'the recipient'}"
                raise InvalidValue("rule", problem, "a rule that fits every quota")


def _message(
    series: Series, who: Recipient, zone: str, one: Occurrence, now: datetime
) -> dict[str, Any]:
    """Return the fields of the draft of an occurrence; one that was missed is due now."""
    at, time = from_ms(one.at_ms), dict[str, Any]()
    if at < now:
        time["send_in"] = timedelta(0)
    elif one.nominal[-1] == "Z":
        time["send_at"] = at
    else:  # it goes by the clocks, and its message keeps that wish
        local = at.astimezone(rules(zone))
        time |= {"send_at": local.replace(tzinfo=None), "fold": local.fold}
    if series.conflict == "shift":
        latest = series.window and max(at, now) + series.window
        time |= {"on_conflict": "shift", "latest": latest}
    message = series.message
    if who.data is not None:
        message["data"] = {**message.get("data", {}), **who.data}
    return {"recipient": who.recipient, "zone": zone, **time, **message}


def _shown(moment: datetime, zone: tzinfo, field: str) -> datetime:
    try:
        return moment.astimezone(zone)
    except (OverflowError, ValueError):
        accepted = "a time of the years 1 to 9999"
        raise InvalidValue(field, f"{quoted(moment)} is out of range", accepted) from None


def _left_out(times: Sequence[T], missed: str) -> Sequence[T]:
    """Return those of the missed times, in order, that get no message."""
    return {"all": times[:0], "last": times[:-1], "none": times}[missed]


def _nominal_at(message: Message, start: int) -> datetime:
    """Return the instant of an occurrence by its key; of a repeated wall time the first."""
    text = _OF_ONE.sub("", (message.idempotency_key or "")[start:])
    nominal = datetime.fromisoformat(text)
    if nominal.tzinfo is not None:
        return nominal
    zone = known_zone(message.zone)
    return message.send_at if zone is None else nominal.replace(tzinfo=rules(zone))


def _addresses(row: SeriesRow) -> set[str]:
    listed = row.definition["recipients"]
    return set() if isinstance(listed, str) else {who[0] for who in listed}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _spread_ms(series: Series, recipient: str) -> int:
    """Return how long after its nominal time a recipient's occurrence is: always the same."""
    if series.spread is None:
        return 0
    return int(_digest(f"{series.name}:{recipient}"), 16) % (series.spread // MILLISECOND)
