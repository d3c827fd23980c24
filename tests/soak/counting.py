"""What must be counted exactly: quotas, limits, messages in hand, windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.soak.history import History, Line, Send
from tests.soak.recorder import place_of
from tests.support.checks import differences
from tests.support.model import excesses

_PLAIN = ""
_SLOT_REFUSED = frozenset({"cancelled", "expired"})
_AFTER_A_FREEZE_US = 500_000


def broken_quotas(history: History) -> Iterator[str]:
    """I3: the promised times of live messages fit every quota of their scopes."""
    for (kind, scope), members in _expected(history).items():
        name = f"{kind} {scope}".strip()
        for each in excesses([*members.values()], history.terms["quotas"][kind]):
            yield f"{name} was promised {each}"


def broken_limits(history: History) -> Iterator[str]:
    """I3: sends, at their begin and where they were accepted, fit every limit.

    Those are left out that a freeze of their worker carried past the end of its claim: nothing
    but the provider can stop them, and the design says so. Nor does a limit hold at the end of a
    send that takes longer than a transport may.
    """
    longest_us = history.terms["longest_ms"] * 1_000
    begun: dict[tuple[str, str], list[int]] = defaultdict(list)
    taken: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in history.sends:
        if is_frozen(each, history):
            continue
        channel = f"channel {each.begin['channel']}"
        for name in (("scope", each.begin["scope"]), (channel, "")):
            begun[name].append(each.at)
            if each.end and each.accepted and each.end["at"] - each.at <= longest_us:
                taken[name].append(each.end["at"])
    for word, times in (("given", begun), ("accepted", taken)):
        for (kind, scope), some in times.items():
            limits = history.terms["limits"].get(kind, ())
            found = excesses(some, limits, per_ms=1_000)
            yield from (f"{kind} {scope} was {word} {excess}" for excess in found)


def too_many_in_hand(history: History) -> Iterator[str]:
    for channel, most in history.terms["concurrency"].items():
        moments: list[tuple[int, int]] = []
        for each in history.sends:
            if each.begin["channel"] == channel and each.end and not is_frozen(each, history):
                moments += [(each.at, 1), (each.end["at"], -1)]
        in_hand = highest = 0
        for _, step in sorted(moments):
            in_hand += step
            highest = max(highest, in_hand)
        if highest > most:
            yield f"{highest} of channel {channel} were in hand at a time, {most} may be"


def false_windows(history: History) -> Iterator[str]:
    return differences(history.places, _expected(history))


def is_frozen(each: Send, history: History) -> bool:
    """Whether the worker was frozen in or right before this send, for as long as one lasts."""
    longest_us = history.terms["longest_ms"] * 1_000
    end = each.end["at"] if each.end else each.at
    return any(
        fault["at"] <= end and each.at <= fault["until"] + _AFTER_A_FREEZE_US
        for fault in history.faults
        if each.begin["pid"] in fault.get("pids", ()) and fault["until"] - fault["at"] >= longest_us
    )


def _expected(history: History) -> dict[tuple[str, str], dict[str, int]]:
    expected: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in history.rows.values():
        if row["status"] not in _SLOT_REFUSED:
            for kind in _kinds(row, history.terms["quotas"]):
                place = place_of(row["id"], row.get("tail", ""))
                expected[kind, row["scope"]][place] = row["send_at_ms"]
    return dict(expected)


def _kinds(row: Line, quotas: Mapping[str, object]) -> list[str]:
    """The kinds of scopes that a message counts against: the plain one, and its channel's."""
    return [kind for kind in (_PLAIN, f"recipient.{row['channel']}") if kind in quotas]
