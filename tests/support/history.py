"""What a history holds: lines of clients, provider, receivers, nemesis, the last look, as values.

A line is a JSON object with ``kind`` and ``at`` (microseconds since 1970). The kinds:

======== ====================================================================================
terms    ``quotas`` and ``limits`` by name, ``concurrency``, ``longest_ms`` of a send, ...
call     a client asks: ``n``, ``op``, ``tag``, ``key``, ``id``, ``digest``, ``send_at_ms``;
         of an event or a series ``event``, ``event_at_ms``, of a reminder also ``offset_ms``
answer   what it was told: ``n``, ``answer`` (ok, refused, unknown), ``error``, ``id``, ...
begin    the provider is given a message: ``id``, ``attempt``, ``pid``, ``digest``, ...
accept   it has taken it; ``decline``: it has not, and ``how`` it said so. A receiver behind a
         transport adds what it read, ``tag`` and ``digest``, and whether it ``answered`` yes
called   ``how`` such a transport called it: sent, temporary, permanent, unknown, broken
delayed  the hook ``on_delayed`` is called: ``id``, ``limit``
fault    ``fault``, ``target``, ``until``, ``pids`` of those frozen, ``done``
seen     a status that SQL showed while the soak ran: ``id``, ``status``, ``token``
row      a message as SQL has it in the end, or had it when it was deleted; ``attempt``: one of
         its tries; ``occurrence``: one of a series that is to be booked: ``event``, ``scope``,
         ``nominal``, ``token`` of the definition ("": of any); ``until``: replaced since then
place    a member of a window in Redis in the end; ``leak``: a secret found in a log
======== ====================================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]

FINAL = frozenset({"sent", "failed", "expired", "cancelled"})
ENDED = FINAL | {"held"}
"""The ends of a message; a held one waits for a person."""
SUBMITS = frozenset({"submit", "conflict", "add_series"})
"""A conflict asks for other content under a known key, which may be free by then.

A series is added for all its messages, of which no answer tells the ids.
"""
NEVER = 1 << 62
_BEGIN = '{"kind": "'
_KINDS = {
    "terms", "call", "answer", "begin", "accept", "decline", "called", "fault", "seen", "row",
    "attempt", "place", "leak", "delayed", "occurrence",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a client. ``until`` is when it was answered, NEVER without an answer.

    ``told`` is the answer's line; its ``answer`` counts as unknown where there is none.
    """

    at: int
    until: int
    op: str
    who: str
    asked: Line
    told: Line

    @property
    def answer(self) -> str:
        return str(self.told.get("answer", "unknown"))

    @property
    def about(self) -> str | None:
        """The id of the message, as far as the client knew it then."""
        return self.told.get("id") or self.asked.get("id")


@dataclass(slots=True, kw_only=True)
class Send:
    """What the provider saw of one attempt. ``end`` is None where its worker died in it."""

    id: str
    attempt: int
    begin: Line
    end: Line | None = None
    called: Line | None = None

    @property
    def at(self) -> int:
        return int(self.begin["at"])

    @property
    def accepted(self) -> bool:
        return self.end is not None and self.end["kind"] == "accept"


@dataclass(slots=True)
class History:
    """All lines, sorted into what they tell."""

    terms: Line = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    strays: list[Line] = field(default_factory=list)
    """Ends of sends that nobody began."""
    faults: list[Line] = field(default_factory=list)
    seen: list[Line] = field(default_factory=list)
    rows: dict[str, Line] = field(default_factory=dict)
    attempts: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    places: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    leaks: list[Line] = field(default_factory=list)
    delays: list[Line] = field(default_factory=list)
    occurrences: list[Line] = field(default_factory=list)
    index: dict[str, list[Call]] = field(default_factory=dict)
    """The submits of each tag, once somebody has asked for them."""

    @classmethod
    def of(cls, lines: Iterable[Line]) -> History:
        by_kind: dict[str, list[Line]] = defaultdict(list)
        for line in sorted(lines, key=lambda line: int(line["at"])):
            by_kind[line["kind"]].append(line)
        strange = by_kind.keys() - _KINDS
        if strange:
            raise ValueError(f"lines of kind {', '.join(sorted(strange))}")
        sends, strays = _sends(
            by_kind["begin"], by_kind["accept"] + by_kind["decline"], by_kind["called"]
        )
        history = cls(
            terms=(by_kind["terms"] or [{}])[0],
            sends=sends,
            strays=strays,
            calls=_calls(by_kind["call"], by_kind["answer"]),
            faults=by_kind["fault"],
            seen=by_kind["seen"],
            rows={line["id"]: line for line in by_kind["row"]},
            leaks=by_kind["leak"],
            delays=by_kind["delayed"],
            occurrences=by_kind["occurrence"],
        )
        for line in sorted(by_kind["attempt"], key=lambda line: int(line["token"])):
            history.attempts[line["id"]].append(line)
        for line in by_kind["place"]:
            window = history.places.setdefault((line["of"], line["scope"]), {})
            window[line["id"]] = line["at_ms"]
        return history

    def submits(self) -> dict[str, list[Call]]:
        """Return the submits of each tag: tries of one message, and of those that took its key."""
        by_tag: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.op in SUBMITS:
                by_tag[call.asked["tag"]].append(call)
        return by_tag

    def submits_of(self, row: Line) -> list[Call]:
        """Return the submits of a message: those of its tag whose answer names no other id."""
        if not self.index:
            self.index.update(self.submits())
        calls = self.index.get(row["tag"], [])
        return [call for call in calls if call.told.get("id", row["id"]) == row["id"]]

    def changes(self, op: str) -> dict[str, list[Call]]:
        by_message: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.op == op and call.about:
                by_message[call.about].append(call)
        return by_message

    def of_events(self) -> dict[str, list[Call]]:
        """Return the calls about each event or series, and the submits of its reminders."""
        by_event: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            if "event" in call.asked:
                by_event[call.asked["event"]].append(call)
        return by_event

    def by_message(self) -> dict[str, list[Send]]:
        found: dict[str, list[Send]] = defaultdict(list)
        for send in self.sends:
            found[send.id].append(send)
        for several in found.values():
            several.sort(key=lambda send: (send.attempt, send.at))
        return found


def now_us() -> int:
    """Return microseconds since 1970 by the host's clock, which all parts of a run share."""
    return time.time_ns() // 1_000


def is_occurrence(row: Line) -> bool:
    return str(row.get("event")).startswith("series:")


def place_of(message_id: str, tail: str) -> str:
    """Return the name of a message's place in a window: with the tail of its last move."""
    return f"{message_id}~{tail}" if tail else message_id


def _calls(asked: Iterable[Line], told: Iterable[Line]) -> list[Call]:
    answers = {line["n"]: line for line in told}
    return [
        Call(
            at=line["at"],
            until=answers.get(line["n"], {}).get("at", NEVER),
            op=line["op"],
            who=line["who"],
            asked=line,
            told=answers.get(line["n"], {}),
        )
        for line in asked
    ]


def _sends(
    begun: Iterable[Line], ended: Iterable[Line], called: Iterable[Line]
) -> tuple[list[Send], list[Line]]:
    """Join what belongs together; return also the ends that belong to nothing."""
    ends, words = _by_send(ended), _by_send(called)
    sends = []
    for line in begun:
        name = _name(line)
        end = ends[name].pop(0) if ends[name] else None
        word = words[name].pop(0) if words[name] else None
        sends.append(Send(id=line["id"], attempt=line["attempt"], begin=line, end=end, called=word))
    return sends, [line for left in ends.values() for line in left]


def _by_send(lines: Iterable[Line]) -> dict[tuple[str, int, int], list[Line]]:
    by_send: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: int(line["at"])):
        by_send[_name(line)].append(line)
    return by_send


def _name(line: Line) -> tuple[str, int, int]:
    return line["id"], line["attempt"], line["pid"]


class Recorder:
    """Appends JSON objects to a file that others may append to.

    A line is one write in append mode. Linux may end the write of a killed process at the end of a
    page of memory: then its line is torn, and :func:`read` leaves it out.
    """

    def __init__(self, path: Path | str) -> None:
        self._target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line; ``at`` is now unless it is given."""
        line = {"kind": kind, "at": now_us()} | fields
        os.write(self._target, json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        os.close(self._target)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history, in the order in which they were written, but for torn ones."""
    if not path.exists():
        return []
    return [line for text in path.read_text().split("\n") for line in _whole(text)]


def _whole(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text)] if text else []
    except json.JSONDecodeError:
        _, begin, rest = text[1:].rpartition(_BEGIN)  # the next writer went on in the torn line
        return _whole(begin + rest) if begin else []
