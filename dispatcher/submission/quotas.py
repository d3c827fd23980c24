"""Quotas and limits of single scopes, changed while everything runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, TypeVar, cast

from dispatcher.channel import split
from dispatcher.errors import InvalidDraft, InvalidValue, quoted
from dispatcher.message import MAX_PRIORITY, MAX_RECIPIENT, check_text, scope_name
from dispatcher.quota import AnyQuota, Quota, SendLimit, parse_limit, parse_quota, places
from dispatcher.reservation.contents import Contents
from dispatcher.reservation.encoding import longest_ms
from dispatcher.reservation.rulebook import RuleBook
from dispatcher.reservation.upkeep import Reserved, Upkeep
from dispatcher.scope import OWN_KIND, OWN_SCOPE, Scope, is_recipient_kind, of_channel, scope_named
from dispatcher.settings import Settings
from dispatcher.store.lists import ScopeSettings
from dispatcher.store.maintenance import StoreMaintenance
from dispatcher.times.clock import Clock
from dispatcher.times.send_time import to_ms

Rule = TypeVar("Rule", bound=AnyQuota | SendLimit)
_MOST_TOLD = 100_000
_EVER_MS = 10**15
_ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeQuotas:
    """The quotas of one scope: its ``own``, or those of its kind; and the limits of its sends.

    ``over`` is how many of its bookings to come are more than they allow; those stay. The first
    100,000 that count are looked at.
    """

    kind: str
    name: str
    quotas: tuple[str, ...]
    own: bool = True
    over: int = 0
    limits: tuple[str, ...] = ()


@dataclass(kw_only=True)
class QuotaList:
    """Gives single scopes quotas and limits of their own. Each call may be made again."""

    settings: Settings
    clock: Clock
    rules: RuleBook
    scope_settings: ScopeSettings
    store: StoreMaintenance
    contents: Contents
    upkeep: Upkeep

    def put(self, kind: str, name: str, quotas: str | Iterable[str] | None) -> ScopeQuotas:
        """Set the quotas of a scope; None gives it those of its kind again.

        Its window may have forgotten bookings that the new quotas still count. They are put back
        from SQL before these are in force, and again afterwards: a sweep or a rebuild that did not
        know of them may have deleted some meanwhile.
        """
        scopes = self._scopes(kind, name, "quotas")
        own = () if quotas is None else self._read("quotas", parse_quota, quotas)
        for scope in scopes:
            self._complete(scope, own)
            self.scope_settings.put(kind, scope.name, "quotas", [*map(str, own)] or None)
            self._complete(scope, own)
        return self.of(kind, name)

    def put_limits(self, kind: str, name: str, limits: str | Iterable[str] | None) -> ScopeQuotas:
        """Set the limits of the sends of a scope; None ends them."""
        [scope] = self._scopes(kind, name, "limits")
        own = () if limits is None else self._read("limits", parse_limit, limits)
        self.scope_settings.put(kind, scope.name, "limits", [*map(str, own)] or None)
        return self.of(kind, name)

    def of(self, kind: str, name: str) -> ScopeQuotas:
        scopes, rules = self._scopes(kind, name, "quotas"), self.rules.fresh()
        first = scopes[0]
        quotas = rules.quotas(first.kind, first.name)
        return ScopeQuotas(
            kind=kind,
            name=first.name,
            quotas=tuple(map(str, quotas)),
            own=(first.kind, first.name) in rules.own,
            over=sum(self._over(scope, quotas) for scope in scopes),
            limits=tuple(map(str, rules.limits.get((kind, first.name), ()))),
        )

    def all(self, kind: str | None) -> tuple[ScopeQuotas, ...]:
        rows = sorted(self.scope_settings.changed(), key=itemgetter(0, 1))
        of_kinds = self.settings.quotas_of
        return tuple(
            ScopeQuotas(
                kind=row.kind,
                name=row.name,
                quotas=row.quotas or tuple(map(str, of_kinds.get(row.kind, ()))),
                own=row.quotas is not None,
                limits=row.limits or (),
            )
            for row in rows
            if (row.quotas or row.limits) and kind in (None, row.kind)
        )

    def _scopes(self, kind: str, name: str, what: Literal["quotas", "limits"]) -> list[Scope]:
        """Return the scope; those of a recipient in each spelling of the channels."""
        settings = self.settings
        kinds = settings.kinds_with_quotas if what == "quotas" else [*settings.scopes]
        kind, name = check_text("kind", kind), check_text("name", name, longest=MAX_RECIPIENT)
        if kind not in kinds:
            problem = f"no scope of a kind {quoted(kind)} can have {what} of its own"
            accepted = ", ".join(kinds) or "one of [scopes] in the settings"
            raise InvalidValue("kind", problem, accepted)
        kind, channel = OWN_SCOPE if kind == OWN_KIND else kind, kind.partition(".")[2]
        names: Iterable[str] = (name,)
        if kind == of_channel(channel) and name != channel:
            raise InvalidValue("name", f"{quoted(name)} is not that of {kind}", quoted(channel))
        if kind == OWN_SCOPE or is_recipient_kind(kind):
            with suppress(InvalidDraft):  # no address, but a scope that messages name
                names = settings.spellings.all(name, channel or None)
            names = dict.fromkeys(map(scope_name, names))
        return [scope_named(kind, name) for name in names]

    def _read(
        self, field: str, parse: Callable[[str], Rule], texts: str | Iterable[str]
    ) -> Sequence[Rule]:
        try:
            rules = [*map(parse, cast("Iterable[str]", split(texts)))]
            self.settings.check_rules(field, rules)
        except InvalidValue as refused:
            raise InvalidValue(field, refused.problem, refused.accepted) from None
        except Exception:  # noqa: BLE001 - a value of the caller's may raise anything
            problem, accepted = f"cannot read {quoted(texts)}", "texts, such as ['5/hour']"
            raise InvalidValue(field, problem, accepted) from None
        if not rules:
            raise InvalidValue(field, "none", "at least one; unset, it has those of its kind")
        return rules

    def _complete(self, scope: Scope, own: Sequence[AnyQuota]) -> None:
        memory = self.upkeep.keep_longer([(scope, longest_ms(own))])
        pages = self.store.reservations(memory=memory, batch=_ROWS_AT_ONCE, past_of=scope)
        for page in pages if memory else ():
            self.upkeep.restore_missing([
                Reserved(row.message_id, (scope,), row.send_at, row.tail)
                for row in page
                if scope in row.counted(self.settings.quotas_of)
            ])  # fmt: skip

    def _over(self, scope: Scope, quotas: Sequence[AnyQuota]) -> int:
        now_ms, zone = to_ms(self.clock.now()), self.settings.zone
        _, window = self.contents.fence.window_of(scope)
        since_ms = now_ms - longest_ms(quotas)
        members = self.contents.members(window, since_ms, _EVER_MS, most=_MOST_TOLD)
        times = [at_ms for _, at_ms in members]

        first = bisect_left(times, now_ms)
        kept, over = times[:first], 0

        def is_full(quota: AnyQuota, at_ms: int) -> bool:
            if isinstance(quota, Quota):
                since_ms = at_ms - quota.length_ms + 1
            else:
                since_ms, _ = quota.bounds(at_ms, 1, zone)
            return len(kept) - bisect_left(kept, since_ms) >= places(
                quota, MAX_PRIORITY, at_ms, zone
            )

        for at_ms in times[first:]:
            if any(is_full(quota, at_ms) for quota in quotas):
                over += 1
            else:
                kept.append(at_ms)
        return over
