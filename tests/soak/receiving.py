"""What receivers have, against what their transports and SQL say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.soak.history import History

_NOT_THERE = frozenset({"temporary", "permanent"})


def strays(history: History) -> Iterator[str]:
    """What a receiver has was sent, once, and arrived as it was."""
    for line in history.strays:
        yield f"{line['id']} reached its receiver in a send that nobody began"
    for each in history.sends:
        if each.end and each.end.get("digest", each.begin["digest"]) != each.begin["digest"]:
            yield f"{each.id} reached its receiver with other content than was sent"


def other_ids(history: History) -> Iterator[str]:
    """However often a message comes, it comes under the same id."""
    ids: dict[str, set[str]] = defaultdict(set)
    ends = [each.end for each in history.sends if each.end]
    for line in [*ends, *history.strays]:
        if "tag" in line:
            ids[line["tag"]].add(line["id"])
    for tag, several in ids.items():
        if len(several) > 1:
            yield f"{tag} reached its receiver under {len(several)} ids"


def untrue_words(history: History) -> Iterator[str]:
    """What a transport calls sent has been confirmed; what it calls a failure is not there.

    Where nobody can know it says so.
    """
    for each in history.sends:
        word = each.called and each.called["how"]
        if word == "sent" and not (each.accepted and each.end and each.end.get("answered")):
            yield f"attempt {each.attempt} of {each.id} was called sent, and nobody confirmed it"
        elif word in _NOT_THERE and each.accepted:
            yield f"attempt {each.attempt} of {each.id} was called {word}, and its receiver has it"


def unproven(history: History) -> Iterator[str]:
    begun = history.by_message()
    for id_, tries in history.attempts.items():
        accepted = {each.attempt for each in begun.get(id_, ()) if each.accepted}
        for number, line in enumerate(tries, 1):
            if line["outcome"] == "sent" and number not in accepted:
                yield f"attempt {number} of {id_} counts as sent, and nobody has accepted it"
