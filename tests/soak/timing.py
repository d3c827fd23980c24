"""What must come in time: sends neither early nor late, answers, recoveries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.soak.counting import is_frozen
from tests.soak.history import NEVER, Call, History

EXPIRY_SLACK_US = 500_000
"""A send may begin this long after the expiry that was checked right before it."""


def early_or_expired(history: History) -> Iterator[str]:
    """Nothing begins before a time that it was promised for, or after its expiry."""
    moves = history.changes("reschedule")
    for each in history.sends:
        row = history.rows.get(each.id)
        if row is None:
            continue
        promised = [*history.submits_of(row), *moves.get(each.id, ())]
        times = possible(promised, each.at, "send_at_ms")
        due = min(times, default=each.begin["send_at_ms"])
        if each.at < due * 1_000:
            yield f"{each.id} was sent {due - each.at / 1_000:.3f} ms early"
        expiry = row["expires_at_ms"]
        is_late = expiry is not None and each.at > expiry * 1_000 + EXPIRY_SLACK_US
        if is_late and not is_frozen(each, history):
            yield f"{each.id} was sent {each.at / 1_000 - expiry:.0f} ms after its expiry"


def slow_recoveries(history: History) -> Iterator[str]:
    longest = history.terms["recovery_ms"]
    for fault, milliseconds in recoveries(history):
        if milliseconds > longest:
            yield f"{milliseconds:.0f} ms after {fault} nothing had been sent"


def slow_answers(history: History) -> Iterator[str]:
    longest = history.terms["answer_ms"]
    for call in history.calls:
        took = (call.until - call.at) / 1_000
        if call.until < NEVER and took > longest and not _was_frozen(call, history):
            yield f"a {call.op} of {call.who} took {took:.0f} ms"


def recoveries(history: History) -> list[tuple[str, float]]:
    """Return how long after each fault the provider accepted something, ms.

    Where faults overlap, this is the time that all of them together took. Faults after the last
    send count for nothing.
    """
    accepted = sorted(each.end["at"] for each in history.sends if each.end and each.accepted)
    found = []
    place = 0
    for fault in sorted(history.faults, key=lambda line: int(line["until"])):
        if not fault["done"]:
            continue
        while place < len(accepted) and accepted[place] <= fault["until"]:
            place += 1
        if place < len(accepted):
            found.append((str(fault["fault"]), (accepted[place] - fault["until"]) / 1_000))
    return found


def possible(calls: Sequence[Call], at: int, name: str) -> set[Any]:
    """Return the values that calls may have given a message by then.

    That of the last call that was confirmed, and those of all that may have happened.
    """
    found = set()
    confirmed: tuple[int, Any] | None = None
    for call in calls:
        if call.answer == "refused" or call.at > at:
            continue
        value = call.told.get(name, call.asked.get(name))
        if call.answer == "ok" and call.until <= at:
            if confirmed is None or call.until > confirmed[0]:
                confirmed = (call.until, value)
        else:
            found |= {value, call.asked.get(name)}
    if confirmed:
        found.add(confirmed[1])
    return found - {None}


def _was_frozen(call: Call, history: History) -> bool:
    return any(
        call.asked.get("pid") in fault.get("pids", ())
        and fault["at"] <= call.until
        and call.at <= fault["until"]
        for fault in history.faults
    )
