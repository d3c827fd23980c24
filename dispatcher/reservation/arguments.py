"""The keys and arguments of the scripts that judge, in the form in which they read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.scripts import Call, packed
from dispatcher.reservation.booking import Leg, LegRequest
from dispatcher.reservation.terms import Blackouts, Judged, Rules, RuleSet

_ScriptTerms = tuple[bool, Judged]
"""Terms as ``reserve.lua`` reads them: has the message extra words; rule sets and blackouts."""

_kind_of = attrgetter("kind")

ENDLESS = "no slot was found in a bounded search"


class Arguments:
    """Encodes calls. Raises ReservationsUnavailable for searches beyond the year 9999."""

    def __init__(self, rules: Rules, under_way_ms: int) -> None:
        self._rules = rules
        self._under_way_ms = under_way_ms

    def reserve(
        self,
        requests: Sequence[LegRequest],
        *,
        pending_ahead_ms: int = 0,
        step: int = 0,
        judged: bytes = b"",
    ) -> Call:
        """Encode ``reserve.lua`` for requests in one shard.

        ``step`` tells how often the search went on, ``judged`` is a hold at the time asked for that
        needs no judging.
        """
        keys = requests[0].leg.keys
        names: list[str] = [keys.pending, keys.epoch]
        messages: list[bytes | str] = []
        numbers: dict[_ScriptTerms, int] = {}
        encode: Callable[[tuple[_ScriptTerms, ...]], bytes] = _encoded_once
        for leg, message_id, asked_ms, latest_ms, submit, *_ in requests:
            scopes, table = leg.scopes, None
            if leg.terms.quiet is None:
                table = self._rules.unchanging(tuple(map(_kind_of, scopes)))
            has_extra = submit is not None or judged != b""
            if table is None:
                table, encode = self._table(leg, asked_ms, step), _encoded
            terms = (has_extra, table)
            number = numbers.setdefault(terms, len(numbers) + 1)
            at = b"%d" % asked_ms
            latest = at if latest_ms == asked_ms else b"%d" % latest_ms
            messages += (message_id.bytes, at, latest, b"%d" % number)
            if submit is not None:
                names.append(keys.duplicates(submit.key))
                messages += (judged, submit.fingerprint, submit.token)
            elif has_extra:
                messages += (judged, b"", b"")
            names += [keys.window(scope.name, scope.kind) for scope in scopes]
        words = [b"%d" % pending_ahead_ms, b"%d" % (self._under_way_ms + pending_ahead_ms)]
        return names, [*words, encode(tuple(numbers)), *messages]

    def move(self, request: LegRequest, *, step: int = 0) -> Call:
        """Encode ``move.lua``."""
        leg, message_id, asked_ms, latest_ms, _, hold, beside = request
        words = [message_id.bytes, hold, beside, asked_ms, latest_ms]
        names = [leg.keys.pending, leg.keys.epoch, *leg.windows]
        return names, [*words, self._judged(leg, asked_ms, step)]

    def next_slot(self, leg: Leg, start_ms: int, own: bytes, *, step: int) -> Call:
        """Encode ``next_slot.lua``; ``own`` is the id of a message whose reservation is free."""
        words = [start_ms, own, self._judged(leg, start_ms, step)]
        return [leg.keys.epoch, *leg.windows], words

    def check(self, leg: Leg, at_ms: int, own: bytes, hold: bytes, resume: Sequence[int]) -> Call:
        """Encode ``check.lua``; ``resume`` is what the last call answered, zeros at first."""
        words = [at_ms, own, hold, *resume, self._judged(leg, at_ms, 0)]
        return [leg.keys.epoch, *leg.windows], words

    def _judged(self, leg: Leg, at_ms: int, step: int) -> bytes:
        return packed(self._table(leg, at_ms, step))

    def _table(self, leg: Leg, at_ms: int, step: int) -> Judged:
        try:
            return self._rules.table(leg.terms, leg.scopes, at_ms, step=step)
        except OverflowError:
            raise ReservationsUnavailable(ENDLESS) from None


def _encoded(different: tuple[_ScriptTerms, ...]) -> bytes:
    """Return the different terms of a batch as ``reserve.lua`` reads them."""
    sets: dict[RuleSet, int] = {}
    blackouts: dict[Blackouts, int] = {}
    terms = []
    for has_extra, (rule_sets, blackout) in different:
        indexes = tuple(sets.setdefault(each, len(sets) + 1) for each in rule_sets)
        covered = blackouts.setdefault(blackout, len(blackouts) + 1)
        terms.append((int(has_extra), covered, indexes))
    return packed((tuple(sets), tuple(blackouts), tuple(terms)))


_encoded_once = lru_cache(maxsize=256)(_encoded)
"""The same, kept for terms that do not depend on the time: most batches have the same ones.

Terms that depend on the time seldom come again, and a batch may have hundreds of them.
"""
