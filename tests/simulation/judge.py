"""Judge stories: by the history that they tell, and by facts that only a story has."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any
from uuid import UUID

from dispatcher.limiters.permits import CLOSED_BY_PROVIDER
from dispatcher.message import Status
from dispatcher.quota import Limit, Quota
from dispatcher.times.send_time import to_ms
from tests.simulation.facts import Pruned
from tests.simulation.faults import Fault
from tests.simulation.recurring import occurrences
from tests.simulation.servers import Row
from tests.simulation.setting import LOOSEST
from tests.simulation.world import World
from tests.support import lines
from tests.support.judge import judge as judged
from tests.support.model import excesses

_OVERDUE = "overdue: "


def judge(world: World) -> list[str]:
    return [
        *(f"a thread ended with {error!r}" for error in world.scheduler.failures),
        *world.facts.wrong,
        *(violation.text for violation in judged(_history(world))),
        *_expired(world),
        *_own_quotas(world),
        *_own_limits(world),
        *_leftovers(world),
        *_permits(world),
        *_delays(world),
    ]


def accepted(world: World) -> set[UUID]:
    return {asked.answer for asked in world.facts.asked if asked.answer is not None}


def _stored(world: World) -> Iterator[Pruned]:
    """Yield all that was ever stored and kept, and what was deleted when it was old."""
    for row in world.store.rows():
        yield Pruned(row, world.store.tries(row.id))
    yield from world.facts.pruned.values()


def _history(world: World) -> lines.Lines:
    facts = world.facts
    terms = lines.terms_of(world.settings, expiry_slack_us=0)
    terms["quotas"]["tenant"] = [[quota.count, quota.length_ms] for quota in LOOSEST]
    yield terms
    for number, asked in enumerate(facts.asked):
        call = {"n": number, "op": "submit", "who": "", "tag": asked.tag, "key": asked.key}
        yield call | asked.reminds | {"kind": "call", "at": asked.began_us, "digest": ""}
        if "event_at_ms" in asked.reminds:  # another one of its batch may set the event
            yield asked.reminds | call | {"kind": "call", "at": asked.began_us, "op": "set_event",
                                          "n": f"set by {number}"}  # fmt: skip
        if asked.told:
            answer = {"kind": "answer", "at": asked.at_us, "n": number, "answer": asked.told}
            told = {"id": str(asked.answer), "status": asked.status} if asked.answer else {}
            yield answer | told
    yield from facts.calls
    yield from occurrences(world)
    yield from world.sends
    for row, tries, deleted_at in _stored(world):
        yield from _cancels(world, row)
        more: dict[str, Any] = {"tag": json.loads(row.body)["text"]}
        if row.id in facts.committed_late | facts.perhaps_over_quota:
            more["kept_late"] = True
        if deleted_at is not None:
            more["deleted_at"] = lines.us(deleted_at)
        if _is_overdue(row):
            more["expires_at_ms"] = to_ms(row.next_attempt_at)
        yield lines.of_row(row, world.settings.quotas_of, **more)
        yield from (lines.of_attempt(row.id, attempt) for attempt in tries)
    for place in lines.places(world.server.client, world.settings.namespace):
        pruned = facts.pruned.get(UUID(place["id"].partition("~")[0]))
        if pruned is None or pruned.row.status in (Status.CANCELLED, Status.EXPIRED):
            yield place


def _cancels(world: World, row: Row) -> lines.Lines:
    """Yield what was asked and told about a cancel of a message, or of all to its recipient."""
    facts = world.facts
    if row.id in facts.perhaps_cancelled or facts.opt_outs.has(row, facts.opt_outs.perhaps):
        call = {"at": 0, "n": f"cancel {row.id}", "op": "cancel", "who": "", "id": str(row.id)}
        yield call | {"kind": "call"}
        if row.id in facts.cancelled:
            yield call | {"kind": "answer", "at": facts.cancelled[row.id], "answer": "ok"}


def _is_overdue(row: Row) -> bool:
    return row.status is Status.EXPIRED and (row.last_error or "").startswith(_OVERDUE)


def _expired(world: World) -> Iterator[str]:
    """What is overdue ends on a channel that does not send it late, and where nothing was tried."""
    for row, *_ in _stored(world):
        if _is_overdue(row) and row.finished_at is not None:
            was_due = row.next_attempt_at + world.settings.overdue_after <= row.finished_at
            expires = row.channel in world.settings.expiring_channels
            if not (was_due and expires and row.attempt_count == 0):
                yield f"{row.id} expired though it was not overdue"


def _own_quotas(world: World) -> Iterator[str]:
    """Who was booked while one set of a tenant's quotas was known to every process fits that set.

    But for what was moved, or kept late; a place that was given back need not have counted.
    """
    facts = world.facts
    asked = {asked.tag: asked for asked in facts.asked if asked.told == "ok"}
    times: defaultdict[tuple[str, Sequence[str]], list[int]] = defaultdict(list)
    for row, *_ in _stored(world):
        submit = asked.get(json.loads(row.body)["text"])
        tenant = (row.scopes or {}).get("tenant")
        is_late = row.id in facts.committed_late | facts.perhaps_over_quota
        if submit is None or tenant is None or row.tail or is_late:
            continue
        if row.status in (Status.CANCELLED, Status.EXPIRED):
            continue
        quotas = facts.own_rules.known(
            "quotas", tenant, submit.process, submit.began_us, submit.at_us
        )
        if quotas:
            times[tenant, quotas].append(to_ms(row.send_at))
    for (tenant, quotas), booked in times.items():
        rules = [(quota.count, quota.length_ms) for quota in map(Quota.parse, quotas)]
        yield from (f"{text} of {tenant}, which has {quotas}" for text in excesses(booked, rules))


def _own_limits(world: World) -> Iterator[str]:
    """The sends of a tenant fit its limits while one set of them is known to every process.

    Each took its permit under a claim that began with its attempt.
    """
    claimed = {
        (str(row.id), number): lines.us(attempt.started_at)
        for row, tries, _ in _stored(world)
        for number, attempt in enumerate(sorted(tries, key=lambda attempt: attempt.token), 1)
    }
    times: defaultdict[tuple[str, Sequence[str]], list[int]] = defaultdict(list)
    for line in world.sends:
        at, tenant = line["at"], line["scopes"].get("tenant")
        since = claimed.get((line["id"], line["attempt"]))
        if line["kind"] == "begin" and tenant is not None and since is not None:
            limits = world.facts.own_rules.known("limits", tenant, line["who"], since, at)
            if limits:
                times[tenant, limits].append(at)
    for (tenant, limits), begun in times.items():
        rules = [(limit.count, limit.length_ms) for limit in map(Limit.parse, limits)]
        excess = excesses(begun, rules, per_ms=1_000)
        yield from (f"{text} of {tenant} were sent, which has {limits}" for text in excess)


def _leftovers(world: World) -> Iterator[str]:
    waiting = world.server.unconfirmed(world.fence)
    if waiting:
        yield f"{waiting} reservations are not confirmed"


def _permits(world: World) -> Iterator[str]:
    """Each send still counts where a limit looks for it, not from earlier than it began."""
    permits = world.wiring.parts.permits
    memory_ms = permits.memory.total_seconds() * 1_000
    end_ms = world.server.now_ms()
    logs: dict[str, dict[bytes, float]] = {}
    for line in world.sends:
        at_ms, scope = world.redis_ms_of(line["at"]), line["scope"]
        if line["kind"] != "begin" or at_ms < end_ms - memory_ms:
            continue
        log = logs.get(scope)
        if log is None:
            name = permits._keys_of(scope).scope(scope)
            log = logs[scope] = world.server.scores(name)
        id_ = UUID(line["id"]).bytes
        if not any(at >= at_ms for member, at in log.items() if member[:16] == id_):
            yield f"try {line['attempt']} of {line['id']} has no permit"


def _delays(world: World) -> Iterator[str]:
    """A delay is told once for each promised time, and where a limit was the reason."""
    for (id_, send_at), times in world.facts.delays.items():
        if times > 1:
            yield f"the delay of {id_} at {send_at} was told {times} times"
    refused = world.facts.refused
    for row, *_ in _stored(world):
        if row.delayed_by not in (None, CLOSED_BY_PROVIDER) and row.id not in refused:
            yield f"{row.id} is delayed by {row.delayed_by}, which never refused it"


@dataclass(slots=True)
class Found:
    faults: int = 0
    stories: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: dict[int, list[str]] = field(default_factory=dict)


def played(seed: int, kinds: Collection[Fault] = ()) -> World:
    world = World(seed, kinds)
    world.play()
    return world


def search(
    *,
    faults: float = inf,
    stories: float = inf,
    first: int = 0,
    kinds: Collection[Fault] = (),
    stop_at_first: bool = True,
) -> Found:
    """Play stories from seed ``first`` on until there were so many, or so many faults in them."""
    hunt = Found()
    seed = first
    while hunt.faults < faults and hunt.stories < stories and not (hunt.broken and stop_at_first):
        world = played(seed, kinds)
        hunt.faults += world.weather.faults
        hunt.stories += 1
        hunt.counts += world.weather.counts
        if broken := judge(world):
            hunt.broken[seed] = broken
        seed += 1
    return hunt


def told(world: World, about: str = "") -> Iterator[str]:
    """Yield the story, one line a step; with ``about`` only what names it."""
    for at_us, who, what, detail in world.story:
        line = f"{at_us / 1_000_000:11.6f}  {who:<10}  {what:<28} {detail}"
        if about in line:
            yield line.rstrip()
