"""Checks of work that is late, and of the code, templates and servers that the settings name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import InvalidSettings
from dispatcher.operations.findings import Check, Finding, check, error, ok, warning
from dispatcher.store import LateCount
from dispatcher.times.zones import PACKAGE, Database
from dispatcher.transports import Probed


class DueFacts(NamedTuple):
    """The due messages that no worker has taken, and the number of pauses in force."""

    late: LateCount
    pauses: int


class ProcessFacts(NamedTuple):
    """The number of living workers and beats, and the late work."""

    workers: int
    beats: int
    late: LateCount


class ZoneFacts(NamedTuple):
    """The tz database of this process, and the versions that workers and beats go by."""

    own: Database
    versions: frozenset[str]


# Work.


@check("work.processes")
def processes(facts: ProcessFacts) -> Finding:
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
        return error(f"{missing} is alive, and {_waiting(late)}", remedy)
    return warning(f"{missing} is alive: due messages are not sent", remedy)


@check("work.zones")
def zones(facts: ZoneFacts) -> Finding:
    """Check that all processes go by one tz database."""
    own, versions = facts
    found = f"times go by the tz database {own.version or 'of unknown version'} of {own.source}"
    if others := versions - {own.version}:
        named = ", ".join(sorted(each or "an unknown one" for each in others))
        return warning(
            f"{found}; a worker or a beat goes by {named}",
            f"install one version of the package {PACKAGE} on every host, and restart",
        )
    return ok(found)


def _late(name: str, *, otherwise: str, where: str, why: str, remedy: str) -> Check[LateCount]:
    """Return a check that warns of messages which wait ``where``; ``otherwise`` if none does."""

    def judge(late: LateCount) -> Finding:
        return warning(_waiting(late, where) + why, remedy) if late.many else ok(otherwise)

    return Check(name, judge)


def _with_note_of_pauses(plain: Check[LateCount]) -> Check[DueFacts]:
    """Return a check whose finding says that some of the messages may be paused."""

    def judge(facts: DueFacts) -> Finding:
        found = plain.judge(facts.late)
        if not facts.late.many or not facts.pauses:
            return found
        pauses = f"{_counted(facts.pauses, 'pause')} {'is' if facts.pauses == 1 else 'are'}"
        told = f"{found.found}; {pauses} in force: paused messages count, too"
        return replace(found, found=told)

    return Check(plain.name, judge)


sweep = _with_note_of_pauses(
    _late(
        "work.sweep",
        otherwise="nothing waits for the sweep",
        where="for the sweep",
        why=": no sweep runs, or it is too slow",
        remedy="start `dispatcher beat` and `dispatcher worker`. Where both run: are messages "
        "paused (`dispatcher status` names pauses)? Are all threads of the workers busy, does "
        "their clock agree with beat's, are there errors in their logs?",
    )
)
overdue = _with_note_of_pauses(
    _late(
        "work.overdue",
        otherwise="nothing is overdue",
        where="to be claimed though due",
        why="",
        remedy="see work.sweep first. Where the sweep runs and nothing is paused, no worker takes "
        "the queue or all are busy: start more, and look for slow transports",
    )
)
waiting = _late(
    "work.waiting",
    otherwise="no message waits more than an hour after its send time",
    where="more than an hour after the send time",
    why=": put back by a limit or for a destination that does not answer, or tried again and again",
    remedy="`dispatcher list --status scheduled` finds them and `dispatcher show` shows one. Raise "
    "the limit or correct the address; expire_after ends messages that are too late",
)
claims = _late(
    "work.claims",
    otherwise="no claim has expired",
    where="with an expired claim",
    why=", and `rescue` does not run",
    remedy="see work.processes and work.sweep: the same beat starts `rescue`",
)


@check("work.orphans")
def orphans(many: int) -> Finding:
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
def channels(strange: Mapping[str, int]) -> Finding:
    """Find messages that no worker with these settings can send."""
    if not strange:
        return ok("every channel of scheduled messages is known")
    named = ", ".join(f"{name} ({many})" for name, many in strange.items())
    return warning(
        f"scheduled messages of channels that the settings do not know: {named}. Workers put them "
        "back again and again",
        "add the channels to the settings of every worker, or cancel the messages",
    )


def notifications(status_channel: str) -> Check[LateCount]:
    """Return the check for messages whose status webhook is late."""
    return _late(
        "work.notifications",
        otherwise="no status webhook is late",
        where="for a status webhook",
        why=": the duty `notify` does not run"
        if status_channel
        else ", and there is no status_channel: none is sent, and the messages are never deleted",
        remedy="see work.processes and work.sweep: the same beat starts `notify`, where its "
        "settings have the status_channel"
        if status_channel
        else "set status_channel for beat and workers to a webhook channel with payload = 'body'",
    )


def _waiting(late: LateCount, where: str = "") -> str:
    waits = f"{_counted(late.many, 'message')} {'waits' if late.many == 1 else 'wait'}"
    longest = timedelta(seconds=round(late.longest.total_seconds()))
    return f"{f'{waits} {where}'.rstrip()}, the first one for {longest}"


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"


# What the settings name.


@check("settings.transports")
def transports(found: Probed) -> Finding:
    """Find channels whose transport a worker cannot make."""
    if not found.unmade:
        return ok("a worker can make the transport of every channel")
    return error(
        f"a worker with these settings does not start: {_listed(found.unmade)}",
        "correct what is named, or install what is missing",
        stops_worker=True,
    )


@check("settings.files")
def files(open_to_others: Sequence[Path]) -> Finding:
    """Find files with secrets or messages that other users of this machine may read."""
    if not open_to_others:
        return ok("other users cannot read the settings file, data_dir or the SQLite file")
    named = ", ".join(str(each) for each in open_to_others)
    return warning(
        f"other users of this machine may read {named}: addresses, messages, secrets",
        f"chmod o= {' '.join(str(each) for each in open_to_others)}",
    )


@check("settings.servers")
def servers(found: Probed) -> Finding:
    """Find mail servers, and others that can be asked, that refuse every message."""
    if found.refuse:
        return error(
            f"no message gets through: {_listed(found.refuse)}",
            "start the server, let this machine reach it, or correct the options of the channel: "
            "where it is, user and password",
        )
    if not found.answer:
        return ok("no channel has a server that could be asked")
    return ok(f"every server answers, and takes the log-in: {', '.join(found.answer)}")


@check("settings.hooks")
def hooks(found: Mapping[str, InvalidSettings | None]) -> Finding:
    """Find hooks that cannot be loaded."""
    for setting, wrong in found.items():
        if wrong is None:
            return ok(f"{setting} can be loaded")
        return error(
            f"{wrong.problem}; every submit and every worker fails",
            "make it importable for submitting programs and workers, or correct hooks: "
            f"{wrong.accepted}",
        )
    return ok("there are none")


@check("settings.templates")
def templates(found: Mapping[str, InvalidSettings | None]) -> Finding:
    """Find templates that cannot be used."""
    wrong = [f"{each.field}: {each.problem}" for each in found.values() if each is not None]
    if wrong:
        return error(
            f"submits that name them are refused: {'; '.join(wrong)}",
            "correct the template, or take it out of the settings",
        )
    return ok(f"each of {len(found)} compiles" if found else "there are none")


def _of_channels(
    name: str, *, what: str, otherwise: str, remedy: str
) -> Check[Mapping[str, InvalidSettings | None]]:
    """Return a check that finds what channels name and cannot be loaded."""

    def judge(found: Mapping[str, InvalidSettings | None]) -> Finding:
        wrong = [f"{path}: {each.problem}" for path, each in found.items() if each is not None]
        if wrong:
            return error(f"{otherwise}: {'; '.join(wrong)}", remedy)
        many = _counted(len(found), "channel")
        return ok(f"the {what} of {many} can be loaded" if found else f"there are no {what}")

    return Check(name, judge)


recipients = _of_channels(
    "settings.recipients",
    what="rules",
    otherwise="submits to these channels are refused",
    remedy="make it importable for submitting programs, or correct the setting: email, phone, or "
    "package.module:function that takes and returns a str",
)
bodies = _of_channels(
    "settings.bodies",
    what="types",
    otherwise="submits to these channels fail, and so does the OpenAPI document",
    remedy="make it importable for submitting programs, or correct the setting: "
    "package.module:attribute of a model of pydantic, a dataclass or a TypedDict",
)


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found.items())
