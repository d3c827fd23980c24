"""The scopes that a message counts against.

Every message counts against the scope it names, by default its recipient. Where the settings give
them quotas, it also counts against that scope on its channel, against its channel as a whole,
and against further scopes that it names, each of a kind, such as a tenant. A message without quotas
counts against none of these, and has a window of its recipient's own that is never full.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import NamedTuple

OWN_SCOPE, OWN_KIND = "", "recipient"
"""The kind of the scope that every message has, and its name for people."""
NO_SCOPE = ""
"""The scope of status and of erased messages. No caller can name it, and no quota counts it."""

WITHOUT = "quotas"
"""The kind of the scope of messages without quotas, and the key of ``scopes`` that makes one so."""


class Scope(NamedTuple):
    """One scope. All scopes with the same ``home`` lie in one shard of the windows."""

    kind: str
    name: str
    home: str

    def __str__(self) -> str:
        if self.kind == of_channel(self.name):
            return self.kind
        return f"{self.kind}:{self.name}" if self.kind else self.name


@lru_cache
def of_scope_on(channel: str) -> str:
    return f"recipient.{channel}"


def is_recipient_kind(kind: str) -> bool:
    """Whether scopes of a kind are recipients on a channel: their names may be addresses."""
    return kind.startswith("recipient.")


@lru_cache
def of_channel(channel: str) -> str:
    return f"channel.{channel}"


@lru_cache
def without_on(channel: str) -> str:
    """Return the kind that the settings have where no message of a channel has quotas."""
    return f"{WITHOUT}.{channel}"


def own_scope(name: str) -> Scope:
    return Scope(OWN_SCOPE, name, name)


def scope_named(kind: str, name: str) -> Scope:
    if kind == OWN_SCOPE or is_recipient_kind(kind):
        return Scope(kind, name, name)
    return Scope(kind, name, f"@{kind}" if kind == of_channel(name) else f"@{kind}:{name}")


def counted(
    kinds: Container[str], *, scope: str, channel: str, scopes: Mapping[str, str] | None = None
) -> tuple[Scope, ...]:
    """Return the scopes a message counts against, of these kinds; those of its home come first."""
    if without_on(channel) in kinds or (scopes and WITHOUT in scopes):
        return () if scope == NO_SCOPE else (Scope(WITHOUT, scope, scope),)
    homes = [] if scope == NO_SCOPE else [OWN_SCOPE, of_scope_on(channel)]
    counts = [Scope(kind, scope, scope) for kind in homes if kind in kinds]
    whole = of_channel(channel)
    if whole in kinds:
        counts.append(Scope(whole, channel, f"@{whole}"))
    further = sorted(scopes.items()) if scopes else ()
    counts += [Scope(kind, name, f"@{kind}:{name}") for kind, name in further if kind in kinds]
    return tuple(counts)
