"""What the scripts that judge are told, in the form in which they read it (``lua/rule.lua``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.direct import packed
from dispatcher.reservation.places import Batch, Group
from dispatcher.reservation.terms import Rules, Terms, joined
from dispatcher.scope import Scope

ENDLESS = "no slot was found in a bounded search"


class Told(NamedTuple):
    """Words of one message, and the same as they are sent."""

    words: tuple[bytes, ...]
    packed: bytes


class Words:
    """Writes the keys and arguments of scripts. Raises ReservationsUnavailable beyond all years."""

    def __init__(self, rules: Rules, under_way_ms: int) -> None:
        self._rules = rules
        self._under_way_ms = under_way_ms
        self._ready: dict[tuple[str, ...], Told] = {}

    def table(self, group: Group, at_ms: int, step: int) -> list[int]:
        """Return the judge table of one message, for a search from ``at_ms`` on."""
        blocks, sky = self._blocks(group.terms, group.scopes, at_ms, step)
        return joined(blocks, [sky])

    def alone(self, group: Group, start_ms: int, step: int) -> Told:
        """Return the judge table and the terms of one message.

        They are kept where they never change: without calendar quotas and quiet hours.
        """
        kinds = tuple([scope.kind for scope in group.scopes])
        ready = self._ready.get(kinds) if group.terms.quiet is None else None
        if ready is not None:
            return ready
        blocks, sky = self._blocks(group.terms, group.scopes, start_ms, step)
        many = len(blocks)
        words = [*joined(blocks, [sky]), 1, 2 + many, 1, 1, *range(1, many + 1)]
        encoded = tuple([str(word).encode() for word in words])
        told = Told(encoded, packed(*encoded))
        if group.terms.quiet is None and self._rules.never_change(kinds):
            self._ready[kinds] = told
        return told

    def many(self, batch: Batch) -> tuple[list[str], list[bytes | str]]:
        """Return the keys and arguments of ``reserve.lua`` for a batch.

        Numbers come as they are sent: hiredis, which would write them, ends the process when a
        signal raises meanwhile.
        """
        keys = batch.keys
        names: list[str] = [keys.pending, keys.epoch]
        orders: list[bytes | str] = []
        sets: dict[Any, int] = {}
        skies: dict[Any, int] = {}
        terms: dict[tuple[int, ...], int] = {}
        fixed: dict[tuple[bool, tuple[str, ...]], int] = {}
        for (message_id, wanted, asked_ms, latest_ms, submit), scopes in zip(
            batch.requests, batch.scopes, strict=True
        ):
            kinds = tuple([scope.kind for scope in scopes])
            number = fixed.get((submit is None, kinds)) if wanted.quiet is None else None
            if number is None:
                blocks, sky = self._blocks(wanted, scopes, asked_ms, 0)
                places = [sets.setdefault(block, len(sets) + 1) for block in blocks]
                mine = (int(submit is not None), skies.setdefault(sky, len(skies) + 1), *places)
                number = terms.setdefault(mine, len(terms) + 1)
                if wanted.quiet is None and self._rules.never_change(kinds):
                    fixed[submit is None, kinds] = number
            asked = b"%d" % asked_ms
            latest = asked if latest_ms == asked_ms else b"%d" % latest_ms
            orders += (message_id.bytes, asked, latest, b"%d" % number)
            if submit is not None:
                names.append(keys.twins(submit.key))
                orders += (b"", submit.fingerprint, submit.token)
            names += [keys.window(scope.name, scope.kind) for scope in scopes]
        words = [0, self._under_way_ms, *joined(list(sets), list(skies)), len(terms)]
        for each in terms:
            words += (len(each), *each)
        return names, [b"%d" % word for word in words] + orders

    def _blocks(
        self, terms: Terms, scopes: Sequence[Scope], at_ms: int, step: int
    ) -> tuple[Sequence[Any], Any]:
        try:
            return self._rules.table(terms, scopes, at_ms, step=step)
        except OverflowError:
            raise ReservationsUnavailable(ENDLESS) from None
