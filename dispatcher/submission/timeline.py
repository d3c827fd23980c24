"""The timeline of a scope: which times fit its quotas, and why others do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher.errors import InvalidDraft, InvalidSendTime, kind_of, quoted
from dispatcher.message import check_recipient, check_text, scope_name
from dispatcher.reservation.booking import Terms
from dispatcher.reservation.timeline import Timeline, Timelines
from dispatcher.scope import NO_SCOPE, of_channel
from dispatcher.settings import Settings
from dispatcher.submission.validation import checked_scopes, known_channel, terms_for
from dispatcher.times import send_time
from dispatcher.times.clock import Clock

_LONGEST = timedelta(days=366)


@dataclass(kw_only=True)
class TimelineReader:
    """Validates the parameters of a timeline and reads it. Changes nothing."""

    settings: Settings
    clock: Clock
    timelines: Timelines

    def read(
        self,
        scope: str | None,
        *,
        channel: str | None,
        scopes: Mapping[str, str] | None,
        zone: str | None,
        kind: str | None,
        start: datetime | str | None,
        length: timedelta,
        spell: bool = True,
    ) -> Timeline:
        """Return the timeline of a scope, of ``length`` from ``start`` on.

        A scope in which something is booked is read as it is named, and so is each without
        ``spell``. Another one is spelt as a recipient of a submit, and refused where no channel
        accepts it as one.

        Raises InvalidDraft, UnknownChannel, InvalidSendTime and ReservationsUnavailable.
        """
        is_own = scope is not None and kind is None
        scope = scope_name(check_recipient(scope, name="scope")) if is_own else scope
        spelt, refused = scope, None
        if scope is not None and is_own and spell:
            try:
                spelt = self.settings.spellings.one(scope, channel)
            except InvalidDraft as error:
                if error.field != "recipient":
                    raise
                refused = error
        terms = self._terms(scope, channel, scopes, zone, kind)
        now = self.clock.now()
        if start is None:
            begins = send_time.after(timedelta(0), now=now)
        else:
            begins = send_time.parse(start, zone=zone, field="start")
            farthest = self.settings.max_horizon
            send_time.check_not_too_far(begins, now=now, farthest=farthest, field="start")
            if begins < send_time.from_ms(0):
                raise InvalidSendTime("start", f"{begins.isoformat()}", "a time from 1970 on")
        accepted = f"a length of more than 0 and at most {_LONGEST.days} days"
        if not isinstance(length, timedelta) or not timedelta(0) < length <= _LONGEST:
            raise InvalidSendTime("length", quoted(length), accepted)
        ends = send_time.after(length, now=begins, field="length")
        timeline = self.timelines.read(terms, begins, ends, now=now)
        own = {str(of_home) for of_home in terms.scopes if of_home.home == scope}
        if any(window.exists for window in timeline.windows if window.scope in own):
            return timeline
        if refused is not None:
            raise refused
        if spelt != scope:
            terms = self._terms(spelt, channel, scopes, zone, kind)
            timeline = self.timelines.read(terms, begins, ends, now=now)
        return timeline

    def _terms(
        self,
        scope: str | None,
        channel: str | None,
        scopes: Mapping[str, str] | None,
        zone: str | None,
        kind: str | None,
    ) -> Terms:
        """Return the terms of the timeline: all scopes of a message, or the named kinds alone."""
        if scope is not None:
            check_text("scope", scope)
        elif kind is not None or (channel is None) == (not scopes):
            raise InvalidDraft("scope", "not given", "a scope, a channel, or scopes by kind")
        if kind is not None and not isinstance(kind, str):
            raise InvalidDraft("kind", kind_of(kind), "a kind of the settings")
        if kind is not None and (channel is not None or scopes is not None):
            raise InvalidDraft("kind", "given together with channel or scopes", "one of them")
        if channel is not None:
            known_channel(channel, self.settings)
        named = scopes if kind is None else {kind: scope}
        scopes = checked_scopes(named, self.settings)
        terms = terms_for(
            self.settings,
            scope=scope or NO_SCOPE,
            channel=channel,
            scopes=scopes,
            zone=zone,
        )
        if kind is None and scope is not None:
            return terms
        kinds = [kind or of_channel(channel or ""), *scopes]
        scopes_alone = tuple(counted for counted in terms.scopes if counted.kind in kinds)
        if not scopes_alone:
            problem = f"{quoted(channel)} as a whole has no quotas (channels.{channel}.quotas)"
            accepted = "one that has, or a recipient too, to see what counts for them there"
            raise InvalidDraft("channel", problem, accepted)
        return terms._replace(scopes=scopes_alone)
