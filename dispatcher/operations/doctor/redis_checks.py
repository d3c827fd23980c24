"""Checks of the Redis of windows and permits."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dispatcher.operations.doctor.finding import Check, Verdict, check, error, ok, warning
from dispatcher.reservation import ForeignFacts, Readiness, RedisFacts

_OLDEST = (6, 2)
_NEARLY_FULL = 0.8
_VULNERABILITIES = "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819"
_FIXED: Mapping[str, Mapping[tuple[int, ...], int]] = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""The first fixed patch of each release line. Later lines never had them."""


@check("redis.version")
def version(facts: RedisFacts) -> Verdict:
    """Refuse a server older than those that the scripts are tested with."""
    numbers = tuple(int(each) for each in re.findall(r"\d+", facts.version)[:2])
    if numbers >= _OLDEST:
        return ok(facts.version)
    floor = ".".join(map(str, _OLDEST))
    return error(
        f"Redis {facts.version or 'without a version'}",
        f"run Redis {floor} or newer, or Valkey",
        stops_worker=True,
    )


@check("redis.vulnerabilities")
def vulnerabilities(facts: RedisFacts) -> Verdict:
    """Warn of a server on which scripts of a client can run native code."""
    name, version = ("Valkey", facts.valkey) if facts.valkey else ("Redis", facts.version)
    numbers = [int(each) for each in re.findall(r"\d+", version)[:3]]
    line, patch = tuple(numbers[:2]), (numbers[2:] or [0])[0]
    fixed = _FIXED[name]
    if line > max(fixed) or (line in fixed and patch >= fixed[line]):
        return ok(
            f"{name} {version} has no vulnerability that this version of the dispatcher knows"
        )
    told = f"{name} {version} may lack the fixes of {_VULNERABILITIES}"
    if facts.is_private:
        return ok(f"{told}; only the user of this process reaches it, by a socket")
    versions = ", ".join(f"{'.'.join(map(str, each))}.{last}" for each, last in fixed.items())
    return warning(
        f"{told}: a client that may run scripts on it may run any code as its user",
        f"run {name} {versions} or newer. Distributions mend older versions: look whether the "
        "changelog of your package names them. Until then let only the dispatcher reach it",
    )


@check("redis.eviction")
def eviction(facts: RedisFacts) -> Verdict:
    """Refuse a server that evicts reservations."""
    if facts.policy == "noeviction":
        return ok("nothing is evicted")
    return error(
        f"maxmemory-policy is {facts.policy}: reservations and permits are forgotten when memory "
        "is short, so the dispatcher refuses this server",
        "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        stops_worker=True,
    )


@check("redis.writes")
def writes(facts: RedisFacts) -> Verdict:
    """Check that the server accepts writes."""
    if facts.is_replica:
        return error(
            "the server is a read-only replica: every submit is refused",
            "let redis_url lead to the master",
        )
    if facts.failed_writes:
        what = " and ".join(facts.failed_writes)
        return error(
            f"the last {what} could not be written to disk; Redis may refuse writes",
            "free space on Redis' disk, check the rights of its folder, see its log",
        )
    return ok("writes are taken")


@check("redis.persistence")
def persistence(facts: RedisFacts) -> Verdict:
    """Warn of data that a restart of Redis loses."""
    if facts.has_log:
        return ok("appendonly is on")
    kept = "only snapshots are written" if facts.has_snapshots else "nothing is written to disk"
    if facts.has_snapshots is None:
        kept = "appendonly is off; whether snapshots are written, the server does not tell"
    return warning(
        f"{kept}: a restart forgets reservations that are not in SQL yet, the turns of messages "
        "that wait for a limit, closed channels and what limiters of your own count; windows and "
        "permits come back from SQL",
        "CONFIG SET appendonly yes, and the same in redis.conf, with appendfsync everysec",
    )


@check("redis.replicas")
def replicas(facts: RedisFacts) -> Verdict:
    """Warn of a master that accepts reservations without its replicas."""
    if not facts.replicas:
        return ok("no replicas")
    if facts.waits_for_replicas:
        return ok(f"{facts.replicas} replicas, and writes are refused without them")
    return warning(
        f"{facts.replicas} replicas, and min-replicas-to-write is 0: after a failover an old "
        "master that still serves its clients takes bookings on its own, and quotas break",
        "CONFIG SET min-replicas-to-write 1, and the same in redis.conf",
    )


@check("redis.cluster")
def cluster(facts: RedisFacts) -> Verdict:
    """Refuse a cluster of several nodes: the dispatcher talks to one server."""
    if facts.cluster is None:
        return ok("no cluster")
    if facts.cluster.serves and facts.cluster.nodes == 1:
        return ok("a cluster of one node")
    state = "serves" if facts.cluster.serves else "does not serve all slots"
    return error(
        f"a cluster with slots on {facts.cluster.nodes} nodes, which {state}: the dispatcher asks "
        "one server only, and keys that lie elsewhere are refused",
        "let redis_url lead to a server without cluster mode, or to a node that serves all slots",
        stops_worker=True,
    )


@check("redis.memory")
def memory(facts: RedisFacts) -> Verdict:
    """Check how near the server is to refusing bookings."""
    used = f"{facts.used_bytes / 2**20:.1f} MiB"
    if not facts.most_bytes:
        return ok(f"{used} used, without maxmemory")
    most = f"{facts.most_bytes / 2**20:.1f} MiB"
    share = facts.used_bytes / facts.most_bytes
    if share < _NEARLY_FULL:
        return ok(f"{used} of {most} used")
    remedy = "raise maxmemory, or give the broker a Redis of its own if it shares this one"
    if share >= 1:
        return error(f"{used} of {most} used: bookings are refused", remedy)
    return warning(f"{used} of {most} used: at {most} bookings are refused", remedy)


@check("redis.complete")
def complete(seen: Readiness) -> Verdict:
    """Check that every part of Redis is complete."""
    if not seen.closed and not seen.being_rebuilt:
        return ok(f"all {len(seen.complete)} parts are complete")
    words = []
    for state, names in (("closed", seen.closed), ("being rebuilt", seen.being_rebuilt)):
        others = len(seen.closed) + len(seen.being_rebuilt) + len(seen.complete) - len(names)
        if names:
            words.append(f"{state}: {', '.join(names) if others else f'all {len(names)} parts'}")
    return error(
        f"{'; '.join(words)}. The windows are built from the database, also on a fresh "
        "deployment; until then such shards refuse submits, and without permits nothing is sent",
        "the sweep builds them within seconds of a worker and a beat running; of many messages it "
        "takes longer. Look again",
    )


@check("redis.foreign")
def foreign(seen: ForeignFacts) -> Verdict:
    """Warn of keys with names of windows that the dispatcher did not write."""
    remedy = "find out who writes into this Redis, and give the dispatcher one of its own"
    if seen.there:
        return error(
            f"{seen.there} keys under the names of windows are no windows: submits to those scopes "
            "are refused",
            f"the sweep sets them aside and rebuilds their shards; {remedy}",
        )
    if seen.set_aside:
        return warning(
            f"{seen.set_aside} keys that were no windows are set aside",
            f"look at them (redis-cli --scan --pattern '*}}:foreign:*'); {remedy}; delete them",
        )
    return ok("no key under the names of windows is another's")


CHECKS: tuple[Check[RedisFacts], ...] = (
    version,
    vulnerabilities,
    eviction,
    writes,
    persistence,
    replicas,
    cluster,
    memory,
)
