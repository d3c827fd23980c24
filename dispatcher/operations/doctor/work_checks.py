"""Checks of work that is late."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from dispatcher.operations.doctor.finding import Verdict, check, error, ok, warning
from dispatcher.store import Late


class UntoldFacts(NamedTuple):
    """Messages whose status webhook is due, and the setting ``status_channel``."""

    late: Late
    status_channel: str


class ProcessFacts(NamedTuple):
    """The number of living workers and beats, and the late work."""

    workers: int
    beats: int
    late: Late


@check("work.processes")
def processes(facts: ProcessFacts) -> Verdict:
    """Check that a worker and a beat are alive."""
    workers, beats, late = facts
    if workers and beats:
        return ok(f"alive: {_counted(workers, 'worker')}, {_counted(beats, 'beat')}")
    missing = " and ".join(
        f"no {name}" for name, many in (("worker", workers), ("beat", beats)) if not many
    )
    remedy = (
        "start `dispatcher worker` and `dispatcher beat` under a supervisor; with processes of an "
        "app of yours, look whether they reach the Redis of redis_url"
    )
    if late.many:
        return error(
            f"{missing} is alive, and {_messages(late)}, the first one for "
            f"{_rounded(late.longest)}",
            remedy,
        )
    return warning(f"{missing} is alive: due messages are not sent", remedy)


@check("work.sweep")
def sweep(late: Late) -> Verdict:
    """Find messages that the sweep should have enqueued."""
    if not late.many:
        return ok("nothing waits for the sweep")
    return warning(
        f"{_messages(late)} for the sweep, the first one for {_rounded(late.longest)}: no sweep "
        "runs, or it is too slow",
        "start `dispatcher beat` and `dispatcher worker`. Where both run: are all threads of the "
        "workers busy, does their clock agree with beat's, are there errors in their logs?",
    )


@check("work.overdue")
def overdue(late: Late) -> Verdict:
    """Find messages that a worker should have claimed."""
    if not late.many:
        return ok("nothing is overdue")
    return warning(
        f"{_messages(late)} to be claimed though due, the first one for {_rounded(late.longest)}",
        "see work.sweep first. Where the sweep runs, no worker takes the queue or all are busy: "
        "start more, and look for slow transports",
    )


@check("work.waiting")
def waiting(late: Late) -> Verdict:
    """Find messages that wait more than an hour after their send time."""
    if not late.many:
        return ok("no message waits more than an hour after its send time")
    return warning(
        f"{_messages(late)} more than an hour after the send time, the first one for "
        f"{_rounded(late.longest)}: put back by a limit or for a destination that does not "
        "answer, or tried again and again",
        "`dispatcher list --status scheduled` finds them and `dispatcher show` shows one. Raise "
        "the limit or correct the address; expire_after ends messages that are too late",
    )


@check("work.claims")
def claims(late: Late) -> Verdict:
    """Find messages whose claim has expired."""
    if not late.many:
        return ok("no claim has expired")
    return warning(
        f"{_messages(late)} with an expired claim, the first one for "
        f"{_rounded(late.longest)}, and `rescue` does not run",
        "see work.processes and work.sweep: the same beat starts `rescue`",
    )


@check("work.orphans")
def orphans(many: int) -> Verdict:
    """Find reservations that the store has not confirmed."""
    if not many:
        return ok("every reservation is confirmed, or young")
    return warning(
        f"not settled within reconcile_grace: {_counted(many, 'reservation')}, which "
        "count against quotas, perhaps without a message",
        "see work.processes and work.sweep: the same beat starts `reconcile`; a database that does "
        "not answer stops it, too",
    )


@check("work.channels")
def channels(strange: Mapping[str, int]) -> Verdict:
    """Find messages that no worker with these settings can send."""
    if not strange:
        return ok("every channel of scheduled messages is known")
    named = ", ".join(f"{name} ({many})" for name, many in strange.items())
    return warning(
        f"scheduled messages of channels that the settings do not know: {named}. Workers put them "
        "back again and again",
        "add the channels to the settings of every worker, or cancel the messages",
    )


@check("work.untold")
def untold(facts: UntoldFacts) -> Verdict:
    """Find messages whose status webhook is late."""
    late, channel = facts
    if not late.many:
        return ok("no status webhook is late")
    waits = f"{_messages(late)} for a status webhook, the first one for"
    if not channel:
        return warning(
            f"{waits} {_rounded(late.longest)}, and there is no status_channel: none is sent, "
            "and the messages are never deleted",
            "set status_channel for beat and workers to a webhook channel with payload = 'body'",
        )
    return warning(
        f"{waits} {_rounded(late.longest)}: the duty `notify` does not run",
        "see work.processes and work.sweep: the same beat starts `notify`, where its settings have "
        "the status_channel",
    )


def _messages(late: Late) -> str:
    return f"{_counted(late.many, 'message')} {'waits' if late.many == 1 else 'wait'}"


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"


def _rounded(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))
