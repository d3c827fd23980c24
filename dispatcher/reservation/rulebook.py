"""The rules in force in this process: by the settings, and those of single scopes by SQL."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from dispatcher.errors import InvalidValue, StoreUnavailable
from dispatcher.quota import AnyQuota, parse_limit, parse_quota
from dispatcher.reservation.encoding import Named, QuotaSet, Rules
from dispatcher.scope import OWN_KIND, OWN_SCOPE
from dispatcher.times.clock import Clock

log = logging.getLogger(__name__)

_FRESH_SECONDS, _BOUND_SECONDS = 2, 4
_LATE_COMMIT = timedelta(minutes=1)
_WHOLE_SECONDS = 600

Change = tuple[str, str, Sequence[str] | None, Sequence[str] | None, datetime]
"""Kind and name of a scope, its own quotas and limits, and when it got them; None: it has none."""


class RuleBook:
    """Gives out the rules in force; threads may share it.

    A call reads what has changed once the rules are 2 s old. One thread reads; others use the rules
    of before, and wait for it only where these are 4 s old. Every 10 minutes all rows are read,
    because a change may be committed long after its time. Where the database does not answer, the
    last rules serve. ``changed`` returns the changes within some time, or all.
    """

    def __init__(
        self,
        quotas: Mapping[str, Sequence[AnyQuota]],
        changed: Callable[[timedelta | None], Iterable[Change]],
        clock: Clock,
    ) -> None:
        self._quotas, self._changed, self._clock = quotas, changed, clock
        self._lock = threading.Lock()
        self._seen: dict[Named, Change] = {}
        self._read_at: float | None = None
        self._whole_at = float("-inf")
        self._tried_at = float("-inf")
        self.latest = Rules(quotas)

    def now(self) -> Rules:
        """Return the rules in force. Raises StoreUnavailable if they were never read."""
        age = self._clock.monotonic() - self._tried_at
        if age >= _FRESH_SECONDS and self._lock.acquire(blocking=age >= _BOUND_SECONDS):
            try:
                if self._clock.monotonic() - self._tried_at >= _FRESH_SECONDS:
                    self._read()
            except StoreUnavailable as error:
                if self._read_at is None:
                    raise
                self._tried_at = self._clock.monotonic()
                log.warning("quotas of single scopes stay as they were last read: %s", error)
            finally:
                self._lock.release()
        return self.latest

    def fresh(self) -> Rules:
        """Return the rules as the database has them. Raises StoreUnavailable."""
        with self._lock:
            self._read()
        return self.latest

    def _read(self) -> None:
        now, since = self._clock.monotonic(), None
        if self._read_at is not None and now - self._whole_at < _WHOLE_SECONDS:
            since = timedelta(seconds=now - self._read_at) + _LATE_COMMIT
        rows, own = [*self._changed(since)], dict(self.latest.own)
        limits = dict(self.latest.limits)
        if since is None:
            self._whole_at = now
            gone = self._seen.keys() - {row[:2] for row in rows}
            rows += [(*named, None, None, self._seen[named][-1]) for named in gone]
        rows = [row for row in rows if self._seen.get(row[:2]) != row]
        for row in rows:
            kind, name, quotas, sends, _ = row
            self._seen[kind, name] = row
            key = OWN_SCOPE if kind == OWN_KIND else kind, name
            own.pop(key, None)
            limits.pop(key, None)
            try:
                if quotas is not None and key[0] in self._quotas:
                    own[key] = QuotaSet([*map(parse_quota, quotas)])
                if sends is not None:
                    limits[key] = [*map(parse_limit, sends)]
            except InvalidValue as error:
                log.error("a %s has rules of a newer version: %s", kind, error)  # noqa: TRY400 - it says all there is
        if rows:
            self.latest = Rules(self._quotas, own, limits)
        self._read_at = self._tried_at = now
