"""The keys and arguments of the scripts that judge, in the form in which they read them."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.scripts import Call
from dispatcher.reservation.booking import Leg, LegRequest
from dispatcher.reservation.terms import Block, Rules, joined

ENDLESS = "no slot was found in a bounded search"


class Arguments:
    """Encodes calls. Raises ReservationsUnavailable for searches beyond the year 9999."""

    def __init__(self, rules: Rules, under_way_ms: int) -> None:
        self._rules = rules
        self._under_way_ms = under_way_ms

    def reserve(
        self,
        asked: Sequence[LegRequest],
        *,
        pending_ahead_ms: int = 0,
        step: int = 0,
        judged: bytes = b"",
    ) -> Call:
        """Encode ``reserve.lua`` for requests in one shard.

        ``step`` tells how often the search went on, ``judged`` is a hold at the time asked for that
        needs no judging.
        """
        keys = asked[0].leg.keys
        names: list[str] = [keys.pending, keys.epoch]
        messages: list[bytes | str] = []
        sets: dict[Block, int] = {}
        blackouts: dict[Block, int] = {}
        terms: dict[tuple[int, ...], int] = {}
        fixed: dict[tuple[bool, tuple[str, ...]], int] = {}
        for leg, message_id, asked_ms, latest_ms, submit, *_ in asked:
            wanted, scopes = leg.terms, leg.scopes
            has_more = submit is not None or judged != b""
            kinds = tuple([scope.kind for scope in scopes])
            number = fixed.get((has_more, kinds)) if wanted.quiet is None else None
            if number is None:
                blocks, blackout = self._table(leg, asked_ms, step)
                indexes = [sets.setdefault(block, len(sets) + 1) for block in blocks]
                covered = blackouts.setdefault(blackout, len(blackouts) + 1)
                number = terms.setdefault((int(has_more), covered, *indexes), len(terms) + 1)
                if wanted.quiet is None and self._rules.never_change(kinds):
                    fixed[has_more, kinds] = number
            at = b"%d" % asked_ms
            latest = at if latest_ms == asked_ms else b"%d" % latest_ms
            messages += (message_id.bytes, at, latest, b"%d" % number)
            if submit is not None:
                names.append(keys.twins(submit.key))
                messages += (judged, submit.fingerprint, submit.token)
            elif has_more:
                messages += (judged, b"", b"")
            names += [keys.window(scope.name, scope.kind) for scope in scopes]
        words = [pending_ahead_ms, self._under_way_ms + pending_ahead_ms]
        words += [*joined(list(sets), list(blackouts)), len(terms)]
        for each in terms:
            words += (len(each), *each)
        return names, [*words, *messages]

    def move(self, asked: LegRequest, *, step: int = 0) -> Call:
        """Encode ``move.lua``."""
        leg, message_id, asked_ms, latest_ms, _, hold, beside = asked
        words = [message_id.bytes, hold, beside, asked_ms, latest_ms]
        names = [leg.keys.pending, leg.keys.epoch, *leg.windows]
        return names, [*words, *self._judge_table(leg, asked_ms, step)]

    def next_slot(self, leg: Leg, start_ms: int, own: bytes, *, step: int) -> Call:
        """Encode ``next_slot.lua``; ``own`` is the id of a message whose reservation is free."""
        words = [start_ms, own, *self._judge_table(leg, start_ms, step)]
        return [leg.keys.epoch, *leg.windows], words

    def check(self, leg: Leg, at_ms: int, own: bytes, hold: bytes, resume: Sequence[int]) -> Call:
        """Encode ``check.lua``; ``resume`` is what the last call answered, zeros at first."""
        words = [at_ms, own, hold, *resume, *self._judge_table(leg, at_ms, 0)]
        return [leg.keys.epoch, *leg.windows], words

    def _judge_table(self, leg: Leg, at_ms: int, step: int) -> list[int]:
        blocks, blackout = self._table(leg, at_ms, step)
        return joined(blocks, [blackout])

    def _table(self, leg: Leg, at_ms: int, step: int) -> tuple[Sequence[Block], Block]:
        try:
            return self._rules.table(leg.terms, leg.scopes, at_ms, step=step)
        except OverflowError:
            raise ReservationsUnavailable(ENDLESS) from None
