"""Checks of work that is late, and of the code, templates and servers that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from dispatcher.errors import InvalidSettings, Unavailable
from dispatcher.file_modes import open_to_others
from dispatcher.operations.findings import Finding, error, ok, warning
from dispatcher.settings import config_file
from dispatcher.store import MOST_GRACES, LateCount
from dispatcher.telemetry.hooks import find as find_hooks
from dispatcher.telemetry.liveness import Kind
from dispatcher.times.zones import PACKAGE, database

if TYPE_CHECKING:
    from dispatcher.operations.doctor import Doctor

_LONG_WAIT = timedelta(hours=1)
"""How long after its send time a message may wait. At defaults the waits between all attempts are a
quarter of an hour."""

# Work.


def processes(doctor: Doctor) -> Finding:
    signs, late = doctor.signs.read(), LateCount()
    workers, beats = (
        sum(sign.is_alive for sign in signs[kind]) for kind in (Kind.WORKER, Kind.BEAT)
    )
    if workers and beats:
        return ok(f"alive: {_counted(workers, 'worker')}, {_counted(beats, 'beat')}")
    missing = " and ".join(
        f"no {name}" for name, many in (("worker", workers), ("beat", beats)) if not many
    )
    remedy = (
        "start `dispatcher worker` and `dispatcher beat` under a supervisor; with processes of an "
        "app of yours, look whether they reach the Redis of redis_url"
    )
    with suppress(Unavailable):
        doctor.facts("schema")
        late = doctor.not_enqueued()
        late = late if late.many else _overdue(doctor)
    if late.many:
        return error(f"{missing} is alive, and {_waiting(late)}", remedy)
    return warning(f"{missing} is alive: due messages are not sent", remedy)


def zones(doctor: Doctor) -> Finding:
    own = database()
    versions = {sign.name for sign in doctor.signs.read()[Kind.ZONES] if sign.is_alive}
    found = f"times go by the tz database {own.version or 'of unknown version'} of {own.source}"
    if others := versions - {own.version}:
        named = ", ".join(sorted(each or "an unknown one" for each in others))
        return warning(
            f"{found}; a worker or a beat goes by {named}",
            f"install one version of the package {PACKAGE} on every host, and restart",
        )
    return ok(found)


def sweep(doctor: Doctor) -> Finding:
    return _late(
        doctor.not_enqueued(),
        len(doctor.pauses.in_force()),
        otherwise="nothing waits for the sweep",
        where="for the sweep",
        why=": no sweep runs, or it is too slow",
        remedy="start `dispatcher beat` and `dispatcher worker`. Where both run: are messages "
        "paused (`dispatcher status` names pauses)? Are all threads of the workers busy, does "
        "their clock agree with beat's, are there errors in their logs?",
    )


def overdue(doctor: Doctor) -> Finding:
    return _late(
        _overdue(doctor),
        len(doctor.pauses.in_force()),
        otherwise="nothing is overdue",
        where="to be claimed though due",
        remedy="see work.sweep first. Where the sweep runs and nothing is paused, no worker takes "
        "the queue or all are busy: start more, and look for slow transports",
    )


def _overdue(doctor: Doctor) -> LateCount:
    grace = doctor.settings.enqueue_grace
    older_than = grace + doctor.patience
    return doctor.store.overdue(older_than=older_than, grace=MOST_GRACES * grace)


def waiting(doctor: Doctor) -> Finding:
    return _late(
        doctor.store.waiting(older_than=_LONG_WAIT),
        otherwise="no message waits more than an hour after its send time",
        where="more than an hour after the send time",
        why=": put back by a limit or for a destination that does not answer, or tried again and "
        "again",
        remedy="`dispatcher list --status scheduled` finds them and `dispatcher show` shows one. "
        "Raise the limit or correct the address; expire_after ends messages that are too late",
    )


def claims(doctor: Doctor) -> Finding:
    return _late(
        doctor.store.not_rescued(older_than=doctor.patience),
        otherwise="no claim has expired",
        where="with an expired claim",
        why=", and `rescue` does not run",
        remedy="see work.processes and work.sweep: the same beat starts `rescue`",
    )


def orphans(doctor: Doctor) -> Finding:
    older_than = doctor.settings.reconcile_grace + doctor.patience
    many = doctor.redis.unconfirmed(older_than=older_than)
    if not many:
        return ok("every reservation is confirmed, or young")
    return warning(
        f"not settled within reconcile_grace: {_counted(many, 'reservation')}, which "
        "count against quotas, perhaps without a message",
        "see work.processes and work.sweep: the same beat starts `reconcile`; a database that does "
        "not answer stops it, too",
    )


def channels(doctor: Doctor) -> Finding:
    strange = doctor.store.unknown_channels(doctor.settings.channels)
    if not strange:
        return ok("every channel of scheduled messages is known")
    named = ", ".join(f"{name} ({many})" for name, many in strange.items())
    return warning(
        f"scheduled messages of channels that the settings do not know: {named}. Workers put them "
        "back again and again",
        "add the channels to the settings of every worker, or cancel the messages",
    )


def notifications(doctor: Doctor) -> Finding:
    status_channel = doctor.settings.status_channel
    # Without a status_channel nothing posts any of them, however young it is.
    older_than = doctor.patience if status_channel else timedelta(0)
    return _late(
        doctor.store.late_notifications(older_than=older_than),
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


def _late(
    late: LateCount, pauses: int = 0, *, otherwise: str, where: str, why: str = "", remedy: str
) -> Finding:
    """Warn of messages that wait ``where``, of which some may be paused; ``otherwise`` if none."""
    if not late.many:
        return ok(otherwise)
    told = _waiting(late, where) + why
    if pauses:
        are = "is" if pauses == 1 else "are"
        told += f"; {_counted(pauses, 'pause')} {are} in force: paused messages count, too"
    return warning(told, remedy)


def _waiting(late: LateCount, where: str = "") -> str:
    waits = f"{_counted(late.many, 'message')} {'waits' if late.many == 1 else 'wait'}"
    longest = timedelta(seconds=round(late.longest.total_seconds()))
    return f"{f'{waits} {where}'.rstrip()}, the first one for {longest}"


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"


# What the settings name.


def transports(doctor: Doctor) -> Finding:
    found = doctor.facts("transports")
    if not found.unmade:
        return ok("a worker can make the transport of every channel")
    return error(
        f"a worker with these settings does not start: {_listed(found.unmade)}",
        "correct what is named, or install what is missing",
        stops_worker=True,
    )


def files(doctor: Doctor) -> Finding:
    private = (config_file(), doctor.settings.data_dir, doctor.store.file)
    found = [str(path) for path in private if path and open_to_others(path)]
    if not found:
        return ok("other users cannot read the settings file, data_dir or the SQLite file")
    return warning(
        f"other users of this machine may read {', '.join(found)}: addresses, messages, secrets",
        f"chmod o= {' '.join(found)}",
    )


def servers(doctor: Doctor) -> Finding:
    found = doctor.facts("transports")
    if found.refuse:
        return error(
            f"no message gets through: {_listed(found.refuse)}",
            "start the server, let this machine reach it, or correct the options of the channel: "
            "where it is, user and password",
        )
    if not found.answer:
        return ok("no channel has a server that could be asked")
    return ok(f"every server answers, and takes the log-in: {', '.join(found.answer)}")


def hooks(doctor: Doctor) -> Finding:
    setting = doctor.settings.hooks
    if not setting:
        return ok("there are none")
    try:
        find_hooks(setting)
    except InvalidSettings as wrong:
        return error(
            f"{wrong.problem}; every submit and every worker fails",
            "make it importable for submitting programs and workers, or correct hooks: "
            f"{wrong.accepted}",
        )
    return ok(f"{setting} can be loaded")


def templates(doctor: Doctor) -> Finding:
    found = doctor.templates.problems()
    wrong = [f"{each.field}: {each.problem}" for each in found.values() if each is not None]
    if wrong:
        return error(
            f"submits that name them are refused: {'; '.join(wrong)}",
            "correct the template, or take it out of the settings",
        )
    return ok(f"each of {len(found)} compiles" if found else "there are none")


def recipients(doctor: Doctor) -> Finding:
    return _of_channels(
        doctor.settings.spellings.problems(),
        what="rules",
        otherwise="submits to these channels are refused",
        remedy="make it importable for submitting programs, or correct the setting: email, phone, "
        "or package.module:function that takes and returns a str",
    )


def bodies(doctor: Doctor) -> Finding:
    return _of_channels(
        doctor.settings.body_types.problems(),
        what="types",
        otherwise="submits to these channels fail, and so does the OpenAPI document",
        remedy="make it importable for submitting programs, or correct the setting: "
        "package.module:attribute of a model of pydantic, a dataclass or a TypedDict",
    )


def _of_channels(
    found: Mapping[str, InvalidSettings | None], *, what: str, otherwise: str, remedy: str
) -> Finding:
    wrong = [f"{path}: {each.problem}" for path, each in found.items() if each is not None]
    if wrong:
        return error(f"{otherwise}: {'; '.join(wrong)}", remedy)
    many = _counted(len(found), "channel")
    return ok(f"the {what} of {many} can be loaded" if found else f"there are no {what}")


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found.items())
