"""Asks the providers whether they would take messages, and hands none over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dispatcher.errors import DeliveryError, InvalidSettings
from dispatcher.settings import Settings
from dispatcher.transports.base import close_all, load


@dataclass(frozen=True, slots=True)
class Probed:
    """The channels whose providers can be asked: those that answer, and why others do not.

    ``unmade`` are the channels whose transports a worker with these settings cannot make, with the
    reasons.
    """

    answer: tuple[str, ...]
    refuse: Mapping[str, str]
    unmade: Mapping[str, str]


def probe_all(settings: Settings) -> Probed:
    """Make every channel's transport as a worker does, and call ``probe`` of those that have one.

    Raises nothing of theirs.
    """
    answer: list[str] = []
    refuse: dict[str, str] = {}
    unmade: dict[str, str] = {}
    for name, channel in settings.channels.items():
        try:
            transport = load(name, channel, settings)
        except InvalidSettings as error:
            unmade[name] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 - it may raise anything, secrets in its text
            unmade[name] = type(error).__name__
            continue
        if not callable(getattr(transport, "probe", None)):
            close_all([transport])
            continue
        why = _refusal(transport)
        close_all([transport])
        if why is None:
            answer.append(name)
        else:
            refuse[name] = why
    return Probed(tuple(answer), refuse, unmade)


def _refusal(transport: object) -> str | None:
    """Return why a provider would take nothing, None where all is well."""
    try:
        transport.probe()  # type: ignore[attr-defined]  # only those that have one come here
    except DeliveryError as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 - a transport may raise anything, secrets in its text
        return type(error).__name__
    return None
