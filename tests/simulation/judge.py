"""Which promises a story breaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

from dispatcher.message import Outcome, Status
from dispatcher.quota import Quota
from dispatcher.store.maintenance import ReservationRow
from dispatcher.store.schema import UNSENT_STATUSES
from dispatcher.times.send_time import to_ms
from tests.simulation.setting import CHANNEL_LIMITS, QUOTAS, settings
from tests.simulation.store import NO_RESERVATION, Row, Try
from tests.simulation.world import World
from tests.support.checks import History, Stored, Windows, broken_promises, false_windows
from tests.support.ledger import Line
from tests.support.model import excesses

_QUOTAS = [(quota.count, quota.length_ms) for quota in QUOTAS]
_OVERDUE = "overdue: "
_CLOCKS_MS = 70_000
"""How far the clocks of two processes may be apart that make ids, in ms."""
KINDS = settings().quotas_of


def judge(world: World) -> list[str]:
    return [
        *(f"a thread ended with {error!r}" for error in world.scheduler.failures),
        *world.facts.wrong,
        *_by_the_checker(world),
        *_early(world),
        *_ends(world),
        *_quotas(world),
        *_limits(world),
        *_expired(world),
        *_held(world),
        *_cancelled(world),
        *_keys(world),
        *_attempts(world),
        *false_windows(_windows(world), _places(world)),
        *_leftovers(world),
        *_permits(world),
    ]


def _rows(world: World) -> list[Row]:
    """Return all that was ever stored and kept, and what was deleted when it was old."""
    pruned = (each.row for each in world.facts.pruned.values())
    return [*world.store.rows(), *pruned]


def _tries(world: World, id_: UUID) -> list[Try]:
    pruned = world.facts.pruned.get(id_)
    return world.store.tries(id_) if pruned is None else pruned.tries


def _outcomes(world: World, id_: UUID) -> list[Outcome | None]:
    return [each.outcome for each in _tries(world, id_)]


def _by_id(world: World) -> dict[UUID, Row]:
    return {row.id: row for row in _rows(world)}


def _scopes(row: Row) -> list[str]:
    place = ReservationRow(row.id, row.scope, row.send_at, row.channel, row.scopes, "")
    return [f"{each.kind}:{each.name}" for each in place.counted(KINDS)]


def _stored(world: World, row: Row) -> Stored:
    """Return a row with what was known of each try when the next one began."""
    outcomes = _outcomes(world, row.id)
    then = world.facts.known_then.get(row.id, [])
    outcomes[: len(then)] = then
    for place in range(len(outcomes)):
        if (row.id, place + 1) in world.provider.unclear:
            outcomes[place] = Outcome.UNKNOWN
    return Stored(
        id=row.id,
        scope=row.scope,
        send_at_ms=to_ms(row.send_at),
        status=row.status,
        outcomes=tuple(outcomes),
    )


def accepted(world: World) -> set[UUID]:
    return {asked.answer for asked in world.facts.asked if asked.answer is not None}


def _perhaps(world: World) -> set[UUID]:
    """Return the messages of callers who were told nothing, or that nobody knows."""
    open_keys = {a.key for a in world.facts.asked if a.told in ("", "unknown") and a.key}
    found = set()
    for asked in world.facts.asked:
        if asked.told in ("", "unknown") or asked.key in open_keys:
            found.update(asked.ids)
    return found


def _by_the_checker(world: World) -> list[str]:
    """Ask the checker about all that must have been sent or cancelled; others are judged here."""
    known = accepted(world)
    told = known | (_perhaps(world) & _by_id(world).keys())
    told |= {row.id for row in _rows(world) if _taken_back(world, row)}
    apart = {row.id for row in _rows(world) if _may_end_otherwise(world, row)}
    history = History(
        accepted=frozenset(told - apart),
        stored=[_stored(world, row) for row in _rows(world) if row.id not in apart],
        ledger=[line for line in _ledger(world) if line.id not in apart],
        cancelled=frozenset(world.facts.cancelled.keys() - apart),
    )
    return broken_promises(history, ())  # quotas and limits are judged here


def _ledger(world: World) -> Iterator[Line]:
    """Yield what the checker is to judge.

    A try that failed before its message was cancelled or moved is none of it; what is early or
    comes after a cancel is judged here.
    """
    rows = _by_id(world)
    for line in world.provider.lines:
        row = rows.get(line.id)
        was_moved = row is not None and to_ms(row.send_at) != line.send_at_ms
        if not was_moved and line.id not in world.facts.cancelled:
            yield line


def _early(world: World) -> Iterator[str]:
    for line in world.provider.lines:
        if line.at_us < line.send_at_ms * 1_000:
            yield f"{line.id} was sent {line.send_at_ms - line.at_us / 1_000:.3f} ms early"


def _taken_back(world: World, row: Row) -> bool:
    """Whether a submit lost its reservation and cancelled the message, unknown to any duplicate."""
    return (
        row.status is Status.CANCELLED
        and row.idempotency_key is None
        and row.id not in accepted(world)
        and any(asked.key is not None and row.id in asked.ids for asked in world.facts.asked)
    )


def _may_end_otherwise(world: World, row: Row) -> bool:
    """Whether a message has ended otherwise than sent, as it may; :func:`_ends` judges how."""
    if row.id in world.facts.committed_late:  # kept at its time, whoever has its place
        return True
    if row.status is Status.CANCELLED:
        return row.id not in world.facts.cancelled
    if row.status is Status.SENT:  # moved after a try, whose success came to light later
        tries = (line for line in world.provider.lines if line.id == row.id)
        return any(line.send_at_ms != to_ms(row.send_at) for line in tries)
    return row.status in (Status.FAILED, Status.EXPIRED, Status.HELD)


def _ends(world: World) -> Iterator[str]:
    arrived = {line.id for line in world.provider.lines if line.event == "end"}
    for row in _rows(world):
        if row.status is Status.SENT and row.id not in arrived:
            yield f"{row.id} counts as sent but never was"
        outcomes = _outcomes(world, row.id)
        if Outcome.SENT in outcomes and row.status not in (Status.SENT, *NO_RESERVATION):
            yield f"{row.id} is known to be sent and is {row.status}"
        if row.status in (Status.SCHEDULED, Status.SENDING):
            yield f"{row.id} is still {row.status}"
        elif row.status is Status.FAILED:
            is_refused = row.id in world.provider.refused
            if not is_refused and row.attempt_count < row.max_attempts:
                yield f"{row.id} failed after {row.attempt_count} tries"
        elif row.status is Status.EXPIRED and not _may_have_expired(world, row):
            yield f"{row.id} expired though it never does"
        elif row.status is Status.HELD and (
            row.on_unknown != "hold" or Outcome.UNKNOWN not in outcomes
        ):
            yield f"{row.id} is held for no reason"
        elif row.status is Status.CANCELLED and not _may_be_cancelled(world, row):
            yield f"{row.id} is cancelled though nobody asked for it"


def _may_be_cancelled(world: World, row: Row) -> bool:
    opt_outs = world.facts.opt_outs
    is_unwanted = opt_outs.has(row, opt_outs.perhaps)
    return row.id in world.facts.perhaps_cancelled or is_unwanted or _taken_back(world, row)


def _may_have_expired(world: World, row: Row) -> bool:
    """Whether its time was over, or it was overdue on a channel that does not send it late."""
    if row.finished_at is None or not (row.last_error or "").startswith(_OVERDUE):
        return row.expires_at is not None
    was_due = row.next_attempt_at + world.settings.overdue_after <= row.finished_at
    expires = row.channel in world.settings.expiring_channels
    return was_due and expires and row.attempt_count == 0


def _quotas(world: World) -> Iterator[str]:
    promised: dict[str, list[int]] = defaultdict(list)
    over = world.facts.committed_late | world.facts.perhaps_over_quota
    for row in _rows(world):
        if row.status not in NO_RESERVATION and row.id not in over:
            for scope in _scopes(row):
                promised[scope].append(to_ms(row.send_at))
    for scope, times in promised.items():
        quotas = [q for q in KINDS[scope.partition(":")[0]] if isinstance(q, Quota)]
        rules = [(quota.count, quota.length_ms) for quota in quotas]
        yield from (f"{scope} was promised {each}" for each in excesses(times, rules))


def _limits(world: World) -> Iterator[str]:
    begun: dict[str, list[int]] = defaultdict(list)
    rows = _by_id(world)
    for line in world.provider.lines:
        if line.event == "begin":
            begun[line.scope].append(line.at_us)
            row = rows.get(line.id)
            if row is not None and row.channel == "sms":
                begun[""].append(line.at_us)
    for scope, times in begun.items():
        of_channel = [(limit.count, limit.length_ms) for limit in CHANNEL_LIMITS]
        name, limits = scope or "the channel", _QUOTAS if scope else of_channel
        yield from (f"{name} was sent {each}" for each in excesses(times, limits, per_ms=1_000))


def _expired(world: World) -> Iterator[str]:
    rows = _by_id(world)
    for line in world.provider.lines:
        row = rows.get(line.id)
        if line.event != "begin" or row is None or row.expires_at is None:
            continue
        if line.at_us >= to_ms(row.expires_at) * 1_000:
            yield f"{line.id} was sent after its expiry"


def _held(world: World) -> Iterator[str]:
    arrived: dict[UUID, int] = defaultdict(int)
    for line in world.provider.lines:
        arrived[line.id] += line.event == "end"
    for row in _rows(world):
        if row.on_unknown == "hold" and arrived[row.id] > 1:
            yield f"{row.id} is to be held and was sent {arrived[row.id]} times"


def _cancelled(world: World) -> Iterator[str]:
    for line in world.provider.lines:
        at_ms = world.facts.cancelled.get(line.id)
        if at_ms is not None and line.event == "begin" and line.at_us > at_ms * 1_000:
            yield f"{line.id} was sent after its cancel was confirmed"


def _keys(world: World) -> Iterator[str]:
    """A key stands for one message, until that is deleted when it is old."""
    answers: dict[str, set[UUID]] = defaultdict(set)
    rows, pruned = _by_id(world), world.facts.pruned
    for asked in world.facts.asked:
        if asked.key is not None and asked.answer is not None:
            answers[asked.key].add(asked.answer)
    for key, ids in answers.items():
        given = [row for row in map(rows.get, ids) if row is not None]
        made = sorted((row.created_at, row.id) for row in given if not _is_free(world, row))
        for (_, before), (_, later) in pairwise(made):
            if before not in pruned or later.int >> 80 < to_ms(pruned[before].at) - _CLOCKS_MS:
                yield f"{key} was answered with {before} and with {later}"


def _is_free(world: World, row: Row) -> bool:
    """Whether a message ended unsent: another one may have its key."""
    was_pruned = row.id in world.facts.pruned and row.status in UNSENT_STATUSES
    return was_pruned or world.store.is_unsent(row)


def _attempts(world: World) -> Iterator[str]:
    for row in _rows(world):
        kept = _tries(world, row.id)
        if row.attempt_count != len(kept):
            yield f"{row.id} counts {row.attempt_count} tries and has {len(kept)}"
        for attempt in kept:
            if attempt.finished_at is None:
                yield f"claim {attempt.token} of {row.id} has no end"


def _windows(world: World) -> Windows:
    """Return all windows, without what is deleted and counts no more."""
    found: dict[str, dict[UUID, int]] = defaultdict(dict)
    pruned = world.facts.pruned
    old = {id_ for id_, each in pruned.items() if each.row.status not in NO_RESERVATION}
    for scope, window in world.server.windows().items():
        ids = {UUID(bytes=member[:16]): at for member, at in window.items()}
        found[scope] = {id_: at for id_, at in ids.items() if id_ not in old}
    return {scope: window for scope, window in found.items() if window}


def _places(world: World) -> list[Stored]:
    return [
        replace(_stored(world, row), scope=scope)
        for row in world.store.rows()
        for scope in _scopes(row)
    ]


def _leftovers(world: World) -> Iterator[str]:
    tails = world.store.tails()
    for name, window in world.server.windows().items():
        for member in window:
            tail = member[16:].decode()
            if tail != tails.get(member[:16], tail):  # a message that was pruned has none
                yield f"{name} still has another place of {UUID(bytes=member[:16])}"
    waiting = world.server.unconfirmed(world.fence)
    if waiting:
        yield f"{waiting} reservations are not confirmed"


def _permits(world: World) -> Iterator[str]:
    """Each send still counts where a limit looks for it, not from earlier than it began."""
    permits = world.wiring.parts.permits
    memory_ms = permits.memory.total_seconds() * 1_000
    end_ms = world.server.now_ms()
    logs: dict[str, dict[bytes, float]] = {}
    for line in world.provider.lines:
        at_ms = world.redis_ms_of(line.at_us)
        if line.event != "begin" or at_ms < end_ms - memory_ms:
            continue
        log = logs.get(line.scope)
        if log is None:
            name = permits._keys_of(line.scope).scope(line.scope)
            log = logs[line.scope] = world.server.scores(name)
        scores = [at for member, at in log.items() if member[:16] == line.id.bytes]
        if not any(score >= at_ms for score in scores):
            yield f"try {line.attempt} of {line.id} has no permit"
