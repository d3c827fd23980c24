"""Checks of the code, the templates and the servers that the settings name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import InvalidSettings
from dispatcher.operations.doctor.finding import Verdict, check, error, ok, warning
from dispatcher.transports import Probed


class HooksFacts(NamedTuple):
    """The setting ``hooks``, and its error."""

    setting: str
    error: InvalidSettings | None


@check("settings.transports")
def transports(found: Probed) -> Verdict:
    """Find channels whose transport a worker cannot make."""
    if not found.unmade:
        return ok("a worker can make the transport of every channel")
    return error(
        f"a worker with these settings does not start: {_listed(found.unmade)}",
        "correct what is named, or install what is missing",
        stops_worker=True,
    )


@check("settings.files")
def files(open_to_others: Sequence[Path]) -> Verdict:
    """Find files with secrets or messages that other users of this machine may read."""
    if not open_to_others:
        return ok("no other user of this machine may read them")
    named = ", ".join(str(each) for each in open_to_others)
    return warning(
        f"other users of this machine may read {named}: addresses, messages, secrets",
        f"chmod o= {' '.join(str(each) for each in open_to_others)}",
    )


@check("settings.servers")
def servers(found: Probed) -> Verdict:
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
def hooks(facts: HooksFacts) -> Verdict:
    """Find hooks that cannot be loaded."""
    if facts.error is not None:
        return error(
            f"{facts.error.problem}; every submit and every worker fails",
            f"make it importable for submitting programs and workers, or correct hooks: "
            f"{facts.error.accepted}",
        )
    return ok(f"{facts.setting} can be loaded" if facts.setting else "there are none")


@check("settings.templates")
def templates(found: Mapping[str, InvalidSettings | None]) -> Verdict:
    """Find templates that cannot be used."""
    wrong = [f"{each.field}: {each.problem}" for each in found.values() if each is not None]
    if wrong:
        return error(
            f"submits that name them are refused: {'; '.join(wrong)}",
            "correct the template, or take it out of the settings",
        )
    return ok(f"each of {len(found)} compiles" if found else "there are none")


@check("settings.recipients")
def recipients(found: Mapping[str, InvalidSettings | None]) -> Verdict:
    """Find channels whose rule for the spelling of recipients cannot be loaded."""
    wrong = [f"{place}: {each.problem}" for place, each in found.items() if each is not None]
    if wrong:
        return error(
            f"submits to these channels are refused: {'; '.join(wrong)}",
            "make it importable for submitting programs, or correct the setting: email, phone, or "
            "package.module:function that takes and returns a str",
        )
    many = f"{len(found)} channel{'' if len(found) == 1 else 's'}"
    return ok(f"the rules of {many} can be loaded" if found else "there are no rules")


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found.items())
