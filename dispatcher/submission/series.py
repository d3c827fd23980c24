"""Series: messages that repeat by a rule. Each occurrence is an ordinary draft, booked ahead.

The idempotency key of an occurrence names the series' token, the recipient and the nominal time, so
that it is booked once, however often a pass reads it. A change gives the series another token.
Messages under an earlier one are not stored any more, and the stored ones are cancelled.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from hashlib import sha256
from itertools import chain, islice
from operator import attrgetter
from secrets import token_hex
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError

from dispatcher.channel import Length
from dispatcher.errors import (
    DispatcherError,
    DuplicateUnderWay,
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
    check_recipient,
    check_text,
    reason_of,
)
from dispatcher.quota import Quota
from dispatcher.reservation.booking import Terms
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.selection import Selection
from dispatcher.settings import Settings, refusal
from dispatcher.store.listing import Listing
from dispatcher.store.lists import Pauses
from dispatcher.store.messages import Messages
from dispatcher.store.schema import PAUSED_EVENT
from dispatcher.store.series import SeriesRow, SeriesRows
from dispatcher.submission.changes import Cancellation
from dispatcher.submission.pipeline import Submitter
from dispatcher.submission.validation import (
    SERIES,
    DraftValidator,
    Occurring,
    checked_body,
    known_channel,
)
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
Conflict = Literal["shift", "skip", "refuse"]
"""What becomes of an occurrence, or with ``refuse`` of its series, where a quota is full."""
Missed = Literal["all", "last", "none"]
"""Which of the occurrences that nobody booked in time, or sent during a pause, are sent late."""

LOCAL = "local"
MAX_NAME = 100
_AT_ONCE = 1_000
_LEASE = timedelta(seconds=30)
_ON_ITS_WAY = timedelta(seconds=30)
_A_DAY_LASTS = timedelta(hours=26)
"""How much earlier than in one zone a wall time may be in another one."""
_MOST_SKIPPED = 20
_MOST_JUDGED = 1_000  # a rule is not compared with a larger quota: that lists as many times
_MOST_A_DAY = 1_440
_NAMED_EVERY = timedelta(days=1)
_CALLABLE = "package.module:callable, which yields (address, zone, data)"


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


class OccurrenceKey(NamedTuple):
    """The idempotency key of an occurrence, by which it is booked once.

    A change of the series gives it another ``token``: then an occurrence may have two messages, the
    cancelled one and that of the new definition. ``recipient`` is a digest of the address.
    """

    token: str
    recipient: str
    nominal: str

    @classmethod
    def of(cls, message: Message) -> Self:
        key = str(message.idempotency_key).removeprefix(SERIES)
        token, recipient, nominal = key.replace(".", ":", 1).split(":", 2)
        return cls(token, recipient, nominal)

    def __str__(self) -> str:
        return f"{SERIES}{self.token}.{self.recipient}:{self.nominal}"

    @property
    def occurrence(self) -> tuple[str, str]:
        """What stays the same whatever definition books it."""
        return self.recipient, self.nominal


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
    conflict: Conflict = "skip"
    window: Length | None = None
    missed: Missed = "last"
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
        fields = {
            name: row.definition[name] for name in cls.model_fields.keys() & row.definition.keys()
        }
        name = row.name.removeprefix(SERIES)
        return cls.model_validate(fields | {"name": name, "booked_until": row.booked_until})

    @property
    def definition(self) -> dict[str, Any]:
        """The fields as a row stores them."""
        return self.model_dump(mode="json", exclude={"name", "booked_until"}, exclude_none=True)

    @property
    def recurrence(self) -> Recurrence:
        return Recurrence(self.rule, self.start, self.gap, self.repeat)

    def fields_for(self, who: Recipient, zone: str) -> dict[str, Any]:
        """Return the fields of a draft, but for those of its time."""
        shared = {name: getattr(self, name) for name in _OF_DRAFTS}
        fields = {name: value for name, value in shared.items() if value is not None}
        if who.data is not None:
            fields["data"] = {**(self.data or {}), **who.data}
        return {"recipient": who.recipient, "zone": zone, **fields}


_OF_DRAFTS = Series.model_fields.keys() & {field.name for field in fields(Draft)} - {"zone"}


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

    def add(self, name: str, fields: Mapping[str, Any]) -> Series:
        row = self.series_rows.get(SERIES + check_text("name", name, longest=MAX_NAME))
        if fields.get("start") is None and row is not None and not row.is_removed:
            fields = {**fields, "start": Series.of(row).start}
        series, now = self._valid_series(name, fields), self.clock.now()
        if row is None:
            self._check(series)
            row = SeriesRow(SERIES + series.name, token_hex(6), series.definition, now, now)
            self.series_rows.add(row)
            row = self.series_rows.get(row.name)
        if row is None or row.is_removed:
            raise StoreUnavailable("the series of this name is being removed", remedy="try again")
        known = Series.of(row)
        if known.model_copy(update={"booked_until": None, "skipped": ()}) != series:
            raise InvalidValue("name", f"there is a series {quoted(name)}", "another, or change")
        return known

    def get(self, name: str) -> Series:
        return Series.of(self._row(name))

    def all(self, after: str | None = None) -> Iterator[Series]:
        begin = "" if after is None else SERIES + check_text("after", after, longest=MAX_NAME)
        rows = self.series_rows.all(size=_AT_ONCE, after=begin)
        return (Series.of(row) for row in rows if not row.is_removed)

    def change(
        self, name: str, fields: Mapping[str, Any], since: datetime | date | str | None
    ) -> Series:
        """Change the occurrences from ``since`` on, by default all that are to come.

        What comes within the horizon, or half a minute where that is shorter, may be on its way: it
        stays.
        """
        row = self._row(name)
        before = Series.of(row)
        earliest = self.clock.now() + min(self.settings.horizon, _ON_ITS_WAY)
        if since is not None:
            since = parse_time_or_date(since, zone=self._zone(before, None), field="since")
        since = max(since or earliest, earliest)
        if since > max(row.booked_until, earliest):
            raise InvalidValue("since", f"{since.isoformat()} is not booked yet", "an earlier time")
        known = before.model_dump(exclude={"name", "booked_until", "skipped"})
        for field, instead in (
            ("recipient", "recipients"), ("body", "template"), ("template", "body"),
        ):  # fmt: skip
            if fields.get(field) is not None:
                del known[instead]
        series = self._valid_series(before.name, known | dict(fields))
        self._check(series)
        definition = series.definition
        if series.zone == before.zone == LOCAL and (
            earliest < since <= row.booked_until - _A_DAY_LASTS
        ):
            wall = since.astimezone(rules(self.settings.zone)).replace(tzinfo=None)
            definition["wall_from"] = wall.isoformat()
            since = max(since - _A_DAY_LASTS, earliest)
        # A pass may have booked some behind ``booked_until``: they are booked anew.
        changed = self._replace(row, definition, min(since, row.booked_until))
        fault("series.after_change")
        self._cancel_replaced(changed)
        return Series.of(changed)

    def remove(self, name: str) -> int:
        """End a series; return how many of its messages were cancelled."""
        return self._remove(self._row(name))

    def _remove(self, row: SeriesRow) -> int:
        removed = self._replace(row, {"removed": True}, row.booked_until)
        fault("series.after_removal")
        return self._cancel_replaced(removed)

    def forget(self, recipient: str) -> int:
        """Take a recipient out of every list; a series that has no other one ends.

        A pass that has read it before stores nothing more. Return how many messages of series that
        end were cancelled.
        """
        cancelled = 0
        for row in self.series_rows.all(size=_AT_ONCE):
            listed = row.definition.get("recipients", "")
            others = [who for who in listed if who[0] != recipient]
            if isinstance(listed, str) or len(others) == len(listed):
                continue
            if others:
                self._replace(row, {**row.definition, "recipients": others}, row.booked_until)
            else:
                cancelled += self._remove(row)
        return cancelled

    def _replace(self, row: SeriesRow, definition: Mapping[str, Any], since: datetime) -> SeriesRow:
        """Give a series another definition, by which it is booked from ``since`` on.

        As that is never after ``booked_until``, it also replaces what a change left that died.
        """
        definition = {**definition, "booked_from": since.isoformat(), "replaces": True}
        changed = SeriesRow(row.name, token_hex(6), definition, since, self.clock.now())
        if not self.series_rows.change(row.token, changed):
            raise StoreUnavailable("another call has changed the series", remedy="try again")
        return changed

    def _cancel_replaced(self, row: SeriesRow) -> int:
        """Cancel the messages that the last change replaced, all of a removed series; count them.

        This stops where another call changes the series: what it would read may be new.
        """
        if "replaces" not in row.definition:
            return 0
        cancelled = 0
        because = "its series was removed" if row.is_removed else "its series was changed"
        scheduled = Selection(event=row.name, status=Status.SCHEDULED)
        for page in self.listing.pages(scheduled, size=_AT_ONCE):
            replaced = [one.id for one in page if row.is_removed or _is_replaced(one, row)]
            present = self.series_rows.get(row.name)
            if present is None or present.token != row.token:
                return cancelled
            cancelled += self._cancel(replaced, because)
        if row.is_removed:
            fault("series.after_cancel")
            if self.series_rows.remove(row.name, row.token):
                self.pauses.end(PAUSED_EVENT, row.name)
        return cancelled

    def _begun(self, row: SeriesRow, now: datetime) -> set[tuple[str, str]]:
        """Return the occurrences that the last change could not cancel.

        They were sent, or are on their way, under an earlier token.
        """
        if "replaces" not in row.definition:
            return set()
        since, until = datetime.fromisoformat(row.definition["booked_from"]), now + _ON_ITS_WAY
        near = Selection(event=row.name, from_at=since, until_at=until)
        return {
            OccurrenceKey.of(message).occurrence
            for message in chain.from_iterable(self.listing.pages(near, size=_AT_ONCE))
            if message.status is not Status.CANCELLED
        }

    def _cancel(self, ids: Sequence[UUID], because: str) -> int:
        results = self.cancellation.cancel_many(ids, because=because)
        return sum(isinstance(result, Message) for result in results)

    def pause(self, name: str) -> None:
        self.pauses.add(PAUSED_EVENT, self._row(name).name)

    def resume(self, name: str) -> int:
        """End a pause; return how many occurrences were missed meanwhile, and are cancelled."""
        row, now = self._row(name), self.clock.now()
        if (PAUSED_EVENT, row.name) not in {pause[:2] for pause in self.pauses.in_force()}:
            return 0
        late = defaultdict[str, list[Message]](list)
        selection = Selection(event=row.name, status=Status.SCHEDULED, until_at=now)
        for message in chain.from_iterable(self.listing.pages(selection, size=_AT_ONCE)):
            late[message.recipient].append(message)
        missed = Series.of(row).missed
        left_out = [
            message.id
            for messages in late.values()
            for message in _left_out(sorted(messages, key=attrgetter("send_at")), missed)
        ]
        cancelled = self._cancel(left_out, "missed while its series was paused")
        self.pauses.end(PAUSED_EVENT, row.name)
        return cancelled

    def preview(self, name: str, count: int, zone: str | None) -> list[datetime]:
        series, now = self.get(name), to_ms(self.clock.now())
        zone = self._zone(series, zone)
        return [from_ms(at_ms) for at_ms, _ in series.recurrence.following(zone, now, count)]

    # Booking.

    def book_ahead(self) -> int:
        """Book what is due to be booked, of 1,000 series; return how many messages that made."""
        now = leased_at = self.clock.now()
        booked = 0
        rows = self.series_rows.take_due(now, lease=_LEASE, limit=_AT_ONCE)
        fault("series.after_take")
        bookable, skipped = dict[str, Series](), defaultdict[str, list[Skipped]](list)
        drafts = self._due_drafts(rows, now, bookable)
        while batch := [*islice(drafts, _AT_ONCE)]:
            known = self.messages.with_keys([draft.idempotency_key or "" for draft in batch])
            batch = [draft for draft in batch if draft.idempotency_key not in known]
            results = self.submitter.submit_many(batch, total=None, progress=None)
            for draft, result in zip(batch, results, strict=True):
                error = None if isinstance(result, Message) else result.error
                if error is None:
                    booked += 1
                elif isinstance(error, DuplicateUnderWay) or (
                    isinstance(error, StoreUnavailable) and error.refused
                ):  # another pass has died there, or it was changed: the next pass books it
                    bookable.pop(draft.series, None)
                elif isinstance(error, Unavailable):
                    raise error
                elif not isinstance(error, IdempotencyConflict):  # else another pass has booked it
                    skipped[draft.series].append(Skipped(draft.nominal, reason_of(error)))
            fault("series.after_batch")
            if (at := self.clock.now()) - leased_at > _LEASE / 2:
                leased_at = at
                self.series_rows.advance([row._replace(due_at=at + _LEASE) for row in rows])
        self.series_rows.advance([
            self._advanced(row, bookable[row.name], now, skipped[row.name])
            for row in rows if row.name in bookable
        ])  # fmt: skip
        return booked

    def _due_drafts(
        self, rows: Iterable[SeriesRow], now: datetime, bookable: dict[str, Series]
    ) -> Iterator[Occurring]:
        """Yield what is to be booked; ``bookable`` gets the series that nothing keeps from it."""
        for row in rows:
            try:
                self._cancel_replaced(row)
                if not row.is_removed:
                    bookable[row.name] = series = Series.of(row)
                    yield from self._drafts(row, series, now)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - a caller's list may raise anything
                # What it says may be an address.
                reason = str(error) if isinstance(error, InvalidSettings) else kind_of(error)
                log.error("%s was not booked, next try in 30 s: %s", row.name, reason)  # noqa: TRY400
                bookable.pop(row.name, None)

    def _advanced(
        self, row: SeriesRow, series: Series, now: datetime, skipped: Sequence[Skipped]
    ) -> SeriesRow:
        if skipped:
            log.warning(
                "%s has no message for %d occurrences, first at %s: %s; see what it skipped",
                row.name, len(skipped), *skipped[0],
            )  # fmt: skip
        until, recurrence = self._book_until(series, now), series.recurrence
        if isinstance(series.recipients, str):
            due_at: datetime | None = now + min(_NAMED_EVERY, (until - now) / 2)
        else:
            zones = {self._zone(series, who.zone) for who in series.recipients}
            first = [recurrence.first_from(zone, to_ms(until)) for zone in zones]
            coming = [from_ms(at_ms) for at_ms in first if at_ms is not None]
            # A pass at that very instant books it: ``until`` lies behind what is booked.
            due_at = min(coming) - (until - now) + MILLISECOND if coming else None
        kept = (*series.skipped, *skipped)[-_MOST_SKIPPED:]
        definition = {**row.definition, "skipped": kept}
        definition.pop("replaces", None)
        return row._replace(
            booked_until=max(until, row.booked_until), due_at=due_at, definition=definition
        )

    def _book_until(self, series: Series, now: datetime) -> datetime:
        """Return until when a series is booked.

        A named list no further than ``retention``: an occurrence that was cancelled longer ago is
        no longer known, and would be booked again.
        """
        known = self.settings.retention if isinstance(series.recipients, str) else timedelta.max
        return now + min(self.settings.book_ahead, self.settings.max_horizon, known)

    def _drafts(self, row: SeriesRow, series: Series, now: datetime) -> Iterator[Occurring]:
        """Yield the occurrences that are to be booked.

        A named list is read again each time: who is new in it gets all that is to come.
        """
        since, until = row.booked_until, self._book_until(series, now)
        if isinstance(series.recipients, str):
            since = min(since, now)
            if "booked_from" in row.definition:  # those before have keys of an earlier token
                since = max(since, datetime.fromisoformat(row.definition["booked_from"]))
        # What ended before is deleted with its key, and would be booked again.
        since = max(since, now - min(self.settings.series_catch_up, self.settings.retention))
        recurrence, spans = series.recurrence, dict[str, list[Occurrence]]()
        begun = self._begun(row, now)
        for who in self._recipients(series):
            zone = self._zone(series, who.zone)
            if zone not in spans:
                wall = row.definition.get("wall_from")
                begin = wall and datetime.fromisoformat(wall).replace(tzinfo=rules(zone))
                begin_ms = to_ms(max(since, begin or since))
                spans[zone] = recurrence.between(zone, begin_ms, to_ms(until))
            later = _spread_ms(series, who.recipient)
            times = [Occurrence(at_ms + later, nominal) for at_ms, nominal in spans[zone]]
            late = [one for one in times if one.at_ms < to_ms(now)]
            dropped = len(_left_out(late, series.missed))  # the late ones come first
            for one in times[dropped:]:
                key = OccurrenceKey(row.token, _digest(who.recipient), one.nominal)
                if key.occurrence in begun:
                    continue
                yield Occurring(
                    **series.fields_for(who, zone),
                    **_time_fields(series, zone, one, now),
                    idempotency_key=str(key),
                    nominal=one.nominal,
                    series=row.name,
                    series_token=row.token,
                )

    def _recipients(self, series: Series) -> Iterator[Recipient]:
        """Yield the recipients; what is none in a named list must not keep the others waiting."""
        if not isinstance(series.recipients, str):
            yield from series.recipients
            return
        path = self.settings.series_recipients.get(series.recipients, "")
        source = load_named(f"series_recipients.{series.recipients}", path, _CALLABLE)
        left_out = 0
        for named in source():
            try:
                who = Recipient(named) if isinstance(named, str) else Recipient(*named)
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

    def _row(self, name: str) -> SeriesRow:
        row = self.series_rows.get(SERIES + check_text("name", name, longest=MAX_NAME))
        if row is None or row.is_removed:
            raise InvalidValue("name", f"there is no series {quoted(name)}", "that of a series")
        return row

    # What callers ask for.

    def _valid_series(self, name: str, fields: Mapping[str, Any]) -> Series:
        """Return a series as it would be stored. Raises InvalidValue."""
        named = {field: value for field, value in fields.items() if value is not None}
        rule, until, count = (named.pop(field, None) for field in ("rule", "until", "count"))
        if "recipient" in named:
            if "recipients" in named:
                raise InvalidValue("recipients", "given together with recipient", "one of them")
            named["recipients"] = [named.pop("recipient")]
        if (recipients := named.get("recipients")) is None:
            accepted = "one, several, or a name in series_recipients"
            raise InvalidValue("recipients", "is missing", accepted)
        if not isinstance(recipients, str) and isinstance(recipients, Iterable):
            named["recipients"] = [[who] if isinstance(who, str) else who for who in recipients]
        if named.setdefault("zone", self.settings.zone) != LOCAL:
            check_zone(named["zone"])
        present = self.clock.now().replace(second=0, microsecond=0)
        start, until = (
            wall_or_instant(moment, field) if isinstance(moment, str) else moment
            for field, moment in (("start", named.pop("start", present)), ("until", until))
        )
        try:
            series = Series(
                name=check_text("name", name, longest=MAX_NAME), rule="", start=start, **named
            )
        except ValidationError as error:
            wrong = refusal(error, Series.model_fields)
            field = wrong.field.partition(".")[0]
            raise InvalidValue(field, wrong.problem, wrong.accepted) from None
        start = series.start
        if start.tzinfo is not None and MINYEAR < start.year < MAXYEAR:
            start = start.astimezone(rules(self._zone(series, None))).replace(tzinfo=None)
        text = str(rule).upper()
        # By RFC 5545 a rule has the minutes of its start, unless it names or counts them.
        has_those = "BYHOUR" in text and "MINUTE" not in text and "SECONDLY" not in text
        if fields.get("start") is None and has_those and start.minute:
            start = start.replace(minute=0) + timedelta(hours=1)
        recurrence = Recurrence.parse(
            rule, start=start, until=until, count=count, gap=series.gap, repeat=series.repeat
        )
        return series.model_copy(update={"rule": recurrence.rule, "start": start})

    def _check(self, series: Series) -> None:
        """Refuse what would never be booked."""
        now, event = self.clock.now(), SERIES + series.name
        if isinstance(series.recipients, str):
            self._check_named(series)
            return
        zones = [self._zone(series, who.zone) for who in series.recipients]
        for zone in dict.fromkeys(zones):
            check_zone(zone, field="recipients")
            if series.recurrence.first_from(zone, to_ms(now)) is None:
                raise InvalidValue("rule", "has no occurrence from now on", "a rule that has one")
        terms = [
            self.validator.validate(
                Draft(send_in=timedelta(0), **series.fields_for(who, zone)), now=now
            ).terms
            for who, zone in zip(series.recipients, zones, strict=True)
        ]
        self._check_density(series.recurrence, zones[0], to_ms(now), terms[0])
        if series.conflict == "skip" and series.spread is None and (quiet := terms[0].quiet):
            times = series.recurrence.following(zones[0], to_ms(now), 20)
            is_quiet = all(quiet.end(zones[0], one.at_ms) for one in times)
            if is_quiet and times[-1].at_ms - times[0].at_ms > 7 * DAY_MS:
                accepted = "another time, or conflict as shift"
                raise InvalidValue("rule", f"lies in the quiet hours {quiet} each time", accepted)
        if series.conflict != "refuse":
            return
        drafts = self._drafts(SeriesRow(event, "", {}, now, now), series, now)
        for refused in self.submitter.plan(drafts, total=None, progress=None).rejections:
            error = refused.error
            ids = error.conflicting if isinstance(error, QuotaExceeded) else ()
            rows = self.messages.movables(list(ids)).values()
            # A change cancels what the series has booked, so that is not in its way.
            if not any(row.message.event == event for row in rows):
                raise error

    def _check_named(self, series: Series) -> None:
        """Refuse what no recipient of a named list would get."""
        if series.recipients not in self.settings.series_recipients:
            accepted = ", ".join(self.settings.series_recipients) or "a list"
            problem = f"there is no {quoted(series.recipients)} in series_recipients"
            raise InvalidValue("recipients", problem, accepted)
        known_channel(series.channel, self.settings)
        if series.template is None:
            checked_body(series.body, self.settings)
        elif series.body is not None:
            raise InvalidValue("body", "given together with template", "one of them")

    def _check_density(self, recurrence: Recurrence, zone: str, now_ms: int, terms: Terms) -> None:
        first_ms = recurrence.first_from(zone, now_ms) or now_ms
        if len(recurrence.between(zone, first_ms, first_ms + DAY_MS)) > _MOST_A_DAY:
            raise InvalidValue("rule", f"has more than {_MOST_A_DAY} times a day", "fewer")
        for scope in terms.scopes:
            for quota in self.rules.now().quotas(scope.kind, scope.name):
                if not isinstance(quota, Quota) or quota.count >= _MOST_JUDGED:
                    continue
                times = recurrence.following(zone, first_ms, quota.count + 1)
                if len(times) > quota.count and times[-1].at_ms - first_ms < quota.length_ms:
                    problem = f"is denser than the quota {quota} of {scope.kind or 'the recipient'}"
                    raise InvalidValue("rule", problem, "a rule that fits every quota")


def _time_fields(series: Series, zone: str, one: Occurrence, now: datetime) -> dict[str, Any]:
    """Return the fields that are the time of a draft; one that was missed is due now."""
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
    return time


def _left_out(times: Sequence[T], missed: Missed) -> Sequence[T]:
    """Return those of the missed times, in order, that get no message."""
    return {"all": times[:0], "last": times[:-1], "none": times}[missed]


def _is_replaced(message: Message, row: SeriesRow) -> bool:
    """Tell whether an occurrence is one of those that the last change replaced.

    By the nominal time in its key: of a repeated wall time the first.
    """
    key = OccurrenceKey.of(message)
    if key.token == row.token:
        return False
    nominal, zone = datetime.fromisoformat(key.nominal), known_zone(message.zone)
    if nominal.tzinfo is None:
        nominal = message.send_at if zone is None else nominal.replace(tzinfo=rules(zone))
    wall = nominal.astimezone(rules(zone or "UTC")).replace(tzinfo=None)
    wall_from = datetime.fromisoformat(row.definition.get("wall_from", "0001-01-01"))
    return wall >= wall_from and nominal >= datetime.fromisoformat(row.definition["booked_from"])


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _spread_ms(series: Series, recipient: str) -> int:
    """Return how long after its nominal time a recipient's occurrence is: always the same."""
    if series.spread is None:
        return 0
    return int(_digest(f"{series.name}:{recipient}"), 16) % (series.spread // MILLISECOND)
