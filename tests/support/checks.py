"""Which promises a history breaks. Pure: the facts go in, sentences come out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from dispatcher.message import Outcome, Status
from tests.support.ledger import Line
from tests.support.model import Quota, excesses

Name = TypeVar("Name", str, tuple[str, str])
Id = TypeVar("Id", UUID, str)
Windows = Mapping[str, Mapping[UUID, int]]
"""Per scope, message ids and send times in ms."""

_HOLD_NO_PLACE = (Status.CANCELLED, Status.EXPIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as SQL has it in the end; ``outcomes`` of its attempts, first one first."""

    id: UUID
    scope: str
    send_at_ms: int
    status: Status
    outcomes: tuple[Outcome | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What callers were told, what SQL holds, and what reached the world."""

    accepted: frozenset[UUID]
    stored: Sequence[Stored]
    ledger: Sequence[Line]
    cancelled: frozenset[UUID] = frozenset()


def broken_promises(history: History, quotas: Sequence[Quota]) -> list[str]:
    return [
        *_trace_of_a_refusal(history),
        *_lost(history),
        *_sent_twice(history),
        *_sent_early(history),
        *_sent_though_cancelled(history),
        *_sent_though_not_accepted(history),
        *_quota_broken(history, quotas),
        *_limit_broken(history, quotas),
    ]


def false_windows(windows: Windows, stored: Iterable[Stored]) -> list[str]:
    expected: dict[str, dict[UUID, int]] = defaultdict(dict)
    for each in stored:
        if each.status not in _HOLD_NO_PLACE:
            expected[each.scope][each.id] = each.send_at_ms
    return [*differences(windows, expected)]


def differences(
    windows: Mapping[Name, Mapping[Id, int]], expected: Mapping[Name, Mapping[Id, int]]
) -> Iterator[str]:
    for name in sorted(expected.keys() | windows.keys()):
        should, does = expected.get(name, {}), windows.get(name, {})
        of = name if isinstance(name, str) else " ".join(name).strip()
        yield from (f"{of}: {id_} has no reservation" for id_ in should.keys() - does.keys())
        yield from (f"{of}: {id_} has a needless one" for id_ in does.keys() - should.keys())
        for id_ in should.keys() & does.keys():
            if should[id_] != does[id_]:
                yield f"{of}: {id_} is reserved at {does[id_]} instead of {should[id_]}"


def _trace_of_a_refusal(history: History) -> Iterator[str]:
    for each in history.stored:
        if each.id not in history.accepted:
            yield f"{each.id} is stored but was never accepted"


def _lost(history: History) -> Iterator[str]:
    stored = {each.id: each for each in history.stored}
    arrived = {line.id for line in history.ledger if line.event == "end"}
    for id_ in history.accepted - history.cancelled:
        if id_ not in stored:
            yield f"{id_} was accepted but is not stored"
        elif stored[id_].status is not Status.SENT:
            yield f"{id_} was accepted but is {stored[id_].status}"
        elif id_ not in arrived:
            yield f"{id_} counts as sent but never was"


def _sent_twice(history: History) -> Iterator[str]:
    """Each try but the last must be one whose outcome nobody can know, begun at most once.

    The n-th attempt that SQL keeps is the one that the ledger calls n.
    """
    outcomes = {each.id: each.outcomes for each in history.stored}
    begun: dict[UUID, list[int]] = defaultdict(list)
    ended = {(line.id, line.attempt) for line in history.ledger if line.event == "end"}
    for line in history.ledger:
        if line.event == "begin":
            begun[line.id].append(line.attempt)
    for id_, numbers in begun.items():
        if len(set(numbers)) < len(numbers):
            yield f"{id_} was sent twice in one attempt"
        for number in sorted(set(numbers))[:-1]:
            known = outcomes.get(id_, ())
            outcome = known[number - 1] if number <= len(known) else None
            if (id_, number) in ended and outcome is not Outcome.UNKNOWN:
                yield f"{id_} was sent again though attempt {number} was {outcome}"


def _sent_early(history: History) -> Iterator[str]:
    send_at_ms = {each.id: each.send_at_ms for each in history.stored}
    for line in history.ledger:
        due = send_at_ms.get(line.id, line.send_at_ms)
        if line.at_us < due * 1_000:
            yield f"{line.id} was sent {due - line.at_us / 1_000:.3f} ms early"


def _sent_though_cancelled(history: History) -> Iterator[str]:
    for id_ in history.cancelled & {line.id for line in history.ledger}:
        yield f"{id_} was sent though it was cancelled"
    for each in history.stored:
        if each.id in history.cancelled and each.status is not Status.CANCELLED:
            yield f"{each.id} was cancelled but is {each.status}"


def _sent_though_not_accepted(history: History) -> Iterator[str]:
    for id_ in {line.id for line in history.ledger} - history.accepted:
        yield f"{id_} was sent but never accepted"


def _quota_broken(history: History, quotas: Sequence[Quota]) -> Iterator[str]:
    promised: dict[str, list[int]] = defaultdict(list)
    for each in history.stored:
        if each.status not in _HOLD_NO_PLACE:
            promised[each.scope].append(each.send_at_ms)
    for scope, times in promised.items():
        yield from (f"{scope} was promised {each}" for each in excesses(times, quotas))


def _limit_broken(history: History, quotas: Sequence[Quota]) -> Iterator[str]:
    begun: dict[str, list[int]] = defaultdict(list)
    for line in history.ledger:
        if line.event == "begin":
            begun[line.scope].append(line.at_us)
    for scope, times in begun.items():
        yield from (f"{scope} was sent {each}" for each in excesses(times, quotas, per_ms=1_000))
