"""Checks of what the settings name: code, templates, servers of providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dispatcher.doctor.finding import Verdict, check, error, ok, warning
from dispatcher.errors import InvalidSettings
from dispatcher.transports import Probed


class HooksFacts(NamedTuple):
    """The setting ``hooks``, and what is wrong with it."""

    setting: str
    error: InvalidSettings | None


@check("settings.servers")
def servers(found: Probed) -> Verdict:
    """Tell of mail servers, and others that can be asked, that would take nothing."""
    if found.refuse:
        return error(
            f"no message gets through: {_listed(found.refuse)}",
            "start the server, let this machine reach it, or correct the options of the channel: "
            "where it is, user and password",
        )
    if found.unmade:
        return warning(
            f"not asked, because their transports cannot be made: {_listed(found.unmade)}",
            "correct what is named, or install what is missing; a worker with these settings does "
            "not start",
        )
    if not found.answer:
        return ok("no channel has a server that could be asked")
    return ok(f"every server answers, and takes the log-in: {', '.join(found.answer)}")


@check("settings.hooks")
def hooks(facts: HooksFacts) -> Verdict:
    """Tell of hooks that cannot be loaded."""
    if facts.error is not None:
        return error(
            f"{facts.error.problem}; every submit and every worker says so, and does nothing else",
            f"make it importable for submitting programs and workers, or correct hooks: "
            f"{facts.error.accepted}",
        )
    return ok(f"{facts.setting} can be loaded" if facts.setting else "there are none")


@check("settings.templates")
def templates(found: Mapping[str, InvalidSettings | None]) -> Verdict:
    """Tell of templates that cannot be used."""
    wrong = [f"{each.field}: {each.problem}" for each in found.values() if each is not None]
    if wrong:
        return error(
            f"submits that name them are refused: {'; '.join(wrong)}",
            "correct the template, or take it out of the settings",
        )
    return ok(f"each of {len(found)} compiles" if found else "there are none")


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found.items())
