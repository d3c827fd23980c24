"""Which promises a history breaks. Pure: lines go in, sentences come out.

The judge believes clients and the provider first; what the system wrote of itself only tells
outcomes that could be known from those that could not. A call without an answer, or with one that
leaves it open, may have happened or not, and later than its answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.history import (
    ENDED,
    FINAL,
    NEVER,
    SUBMITS,
    Call,
    History,
    Line,
    Send,
    is_occurrence,
    place_of,
)
from tests.support.model import excesses

_UNSENT = frozenset({"cancelled", "expired", "failed"})
_NOT_TAKEN = frozenset({"temporary", "permanent"})
_HOLD_NO_PLACE = frozenset({"cancelled", "expired"})
_AFTER_A_FREEZE_US = 500_000
_CLAIMED_AHEAD_US = 1_000_000
"""A message may be in the hands of a worker from so long before its time on."""
_EVENT_ENDS = frozenset({"cancel_event", "remove_series"})
_CANCEL_SOME = _EVENT_ENDS | {"change_series", "resume_series"}
"""Calls that cancel messages of their event or series; so do moves that ask for it."""


class Violation(NamedTuple):
    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


def judge(lines: Iterable[Line]) -> list[Violation]:
    history = History.of(lines)
    return [
        Violation(name, text)
        for name, checks in INVARIANTS.items()
        for check in checks
        for text in check(history)
    ]


def lost(history: History) -> Iterator[str]:
    """Whatever was accepted has come to an end, and to one that has a reason."""
    begun = history.by_message()
    cancels = history.changes("cancel")
    of_events = history.of_events()
    for id_ in sorted(_accepted(history) - history.rows.keys()):
        yield f"{id_} was accepted but is not stored"
    for id_, row in history.rows.items():
        status = row["status"]
        known = begun.get(id_, [])
        if status not in history.terms.get("ends", ENDED):
            yield f"{id_} is still {status}"
        elif status == "sent" and not any(send.accepted for send in known):
            yield f"{id_} counts as sent but never was"
        elif status == "failed" and not (
            any(send.end and send.end.get("how") == "permanent" for send in known)
            or row["attempt_count"] >= row["max_attempts"]
        ):
            yield f"{id_} failed without a reason"
        elif status == "expired" and row["expires_at_ms"] is None:
            yield f"{id_} expired though it never expires"
        elif status == "held" and (
            row["on_unknown"] == "retry" or "unknown" not in _outcomes(id_, history)
        ):
            yield f"{id_} is held for no reason"
        elif (
            status == "cancelled"
            and not any(call.answer != "refused" for call in cancels.get(id_, ()))
            and not any(
                call.answer != "refused" and call.at <= row["ended_at"]
                for call in of_events.get(row.get("event") or "", ())
                if call.op in _CANCEL_SOME or call.asked.get("past") == "cancel"
            )
        ):
            accepted = [call for call in history.submits_of(row) if _is_promise(call)]
            if accepted:
                yield f"{id_} was accepted and is cancelled, which nobody asked for"


def phantoms(history: History) -> Iterator[str]:
    """What reached the provider was submitted, with this content."""
    updates = history.changes("update")
    for send in history.sends:
        row = history.rows.get(send.id)
        calls = history.submits_of(row) if row else []
        if row is None or not calls:
            yield f"{send.id} was sent but never submitted"
            continue
        digests = possible([*calls, *updates.get(send.id, ())], send.at, "digest")
        if send.begin["digest"] not in digests:
            yield f"{send.id} was sent with content that nobody asked for"
    sent = defaultdict(set)
    for send in history.sends:
        if send.accepted:
            sent[send.id].add(send.begin["digest"])
    for id_, row in history.rows.items():
        if row["status"] == "sent" and sent[id_] and row["digest"] not in sent[id_]:
            yield f"{id_} was sent with other content than SQL holds"
    tags = {call.asked["tag"] for call in history.calls if call.op in SUBMITS}
    for row in history.rows.values():
        if row["tag"] not in tags:
            yield f"{row['id']} is stored but was never submitted"


def sent_twice(history: History) -> Iterator[str]:
    """Each send but the last has an outcome that nobody could know before the next one.

    The n-th attempt that SQL keeps is the one that the provider calls n.
    """
    for id_, several in history.by_message().items():
        numbers = [send.attempt for send in several]
        if len(set(numbers)) < len(numbers):
            yield f"{id_} was sent twice in one attempt"
        accepted = [send for send in several if send.accepted]
        row = history.rows.get(id_, {})
        if row.get("on_unknown") == "hold" and len(accepted) > 1 and not _released(id_, history):
            yield f"{id_} was accepted {len(accepted)} times though it was to be held"
        tries = history.attempts.get(id_, [])
        for send in accepted:
            if send.attempt < numbers[-1] and _could_be_known(tries, send.attempt):
                yield f"{id_} was sent again though attempt {send.attempt} was known to be sent"


def traces_of_refusals(history: History) -> Iterator[str]:
    """A submit that was refused, however often it was tried, left nothing.

    One under an idempotency key may leave a cancelled message: a duplicate may know of it.
    """
    begun = history.by_message()
    rows = {row["tag"]: row for row in history.rows.values()}
    for tag, calls in history.submits().items():
        row = rows.get(tag)
        if row is None or any(call.answer != "refused" for call in calls):
            continue
        if row["id"] in begun:
            yield f"{row['id']} was refused and sent"
        elif not (calls[0].asked.get("key") and row["status"] == "cancelled"):
            yield f"{row['id']} was refused and is stored"


def false_cancels(history: History) -> Iterator[str]:
    """After a confirmed cancel nothing begins, and what was denied did not happen."""
    begun = history.by_message()
    for id_, calls in history.changes("cancel").items():
        status = history.rows.get(id_, {}).get("status")
        confirmed = [call.until for call in calls if call.answer == "ok"]
        if confirmed:
            if status != "cancelled":
                yield f"{id_} was cancelled but is {status}"
            for send in begun.get(id_, ()):
                if send.at > min(confirmed) and not is_frozen(send, history):
                    yield f"{id_} was sent though it was cancelled"
        elif status == "cancelled" and all(call.answer == "refused" for call in calls):
            yield f"{id_} is cancelled though its caller was told that it is not"


def false_duplicates(history: History) -> Iterator[str]:
    """One idempotency key gives one message, and other content an error.

    A key is free once its message has ended, surely unsent, or is deleted: the next message is a
    new one.
    """
    contents: dict[tuple[str, str], set[str]] = defaultdict(set)
    told: dict[str, dict[str, int]] = defaultdict(dict)
    for call in history.calls:
        key = call.asked.get("key")
        if call.op in SUBMITS and key and call.answer == "ok":
            contents[key, call.told["id"]].add(call.asked["digest"])
            told[key].setdefault(call.told["id"], call.until)
    for (key, _), digests in contents.items():
        if len(digests) > 1:
            yield f"key {key} was taken for {len(digests)} contents"
    for key, ids in told.items():
        for one, other in pairwise(id_ for id_ in ids if id_ in history.rows):
            # Which was made first nobody knows: answers may be slow, and clocks of callers wrong.
            is_one_first = _gave_key_back(one, ids[other], history)
            if not (is_one_first or _gave_key_back(other, ids[one], history)):
                yield f"key {key} gave {one} and {other}"
    keys = Counter(
        row["key"]
        for row in history.rows.values()
        if row["key"] and not _gave_key_back(row["id"], NEVER, history)
    )
    yield from (f"key {key} has {many} rows" for key, many in keys.items() if many > 1)


def false_attempts(history: History) -> Iterator[str]:
    for id_, row in history.rows.items():
        tries = history.attempts.get(id_, [])
        if row["attempt_count"] != len(tries):
            yield f"{id_} counts {row['attempt_count']} tries and has {len(tries)}"
        if row["status"] in ENDED and None in [attempt["finished_at"] for attempt in tries]:
            yield f"{id_} has ended and a try of it has not"


def false_tokens(history: History) -> Iterator[str]:
    """Tokens only grow: each attempt has a greater one, begun no earlier."""
    for id_, tries in history.attempts.items():
        tokens = [attempt["token"] for attempt in tries]
        if len(set(tokens)) < len(tokens):
            yield f"{id_} used a token twice"
        if tokens and id_ in history.rows and history.rows[id_]["token"] < tokens[-1]:
            yield f"{id_} has a token older than its last attempt"
        begun = [attempt["started_at"] for attempt in tries]
        if begun != sorted(begun):
            yield f"{id_} used an older token after a newer one"
    shown: dict[str, int] = {}
    for line in [*history.seen, *history.rows.values()]:
        if line["token"] < shown.get(line["id"], 0):
            yield f"{line['id']} showed token {line['token']} after {shown[line['id']]}"
        shown[line["id"]] = line["token"]


def changed_ends(history: History) -> Iterator[str]:
    """What SQL, or a client, has seen as ended stays as it was.

    What has failed may turn out to have been sent, when its worker tells so late.
    """
    ended: dict[str, Line] = {}
    for line in [*history.seen, *history.rows.values()]:
        before = ended.get(line["id"])
        if before and not _may_become(before["status"], line["status"]):
            yield f"{line['id']} was {before['status']} and is {line['status']}"
        if line["status"] in FINAL and (not before or before["status"] != line["status"]):
            ended[line["id"]] = line
    for call in history.calls:
        before = ended.get(call.about or "")
        status = call.told.get("status")
        if not (before and status) or before["at"] >= call.at:
            continue
        if not _may_become(before["status"], status):
            yield f"{call.about} was {before['status']}, and then a client was told {status}"


def leaks(history: History) -> Iterator[str]:
    for line in history.leaks:
        yield f"{line['log']} tells {line['secret']}"


def false_accounts(history: History) -> Iterator[str]:
    """Accepted = sent + failed + expired + cancelled + held; the provider agrees."""
    accepted = _accepted(history)
    ends = Counter(row["status"] for id_, row in history.rows.items() if id_ in accepted)
    if sum(ends[end] for end in ENDED) != len(accepted):
        yield f"{len(accepted)} were accepted, and {dict(ends)} is what came of them"
    for id_, several in history.by_message().items():
        row = history.rows.get(id_)
        tries = history.attempts.get(id_, [])
        if row is None or row["status"] == "sent":
            continue
        untold = {"unknown", "sent"} if row["status"] in {"cancelled", "expired"} else {"unknown"}
        for send in several:
            if send.accepted and _outcome(tries, send.attempt) not in untold:
                yield f"{id_} was accepted by the provider and is {row['status']}"


def broken_quotas(history: History) -> Iterator[str]:
    """The promised times of live messages fit every quota of their scopes.

    Those of lower classes have left the places that a quota keeps. Left out are those that had to
    keep their times though others may have booked them.
    """
    judged = [row for row in history.rows.values() if not row.get("kept_late")]
    for (kind, scope), members in _places(judged).items():
        name = f"{kind} {scope}".strip()
        for excess in excesses([*members.values()], history.terms["quotas"][kind]):
            yield f"{name} was promised {excess}"
    kept = history.terms.get("kept", {})
    for least in {least for quotas in kept.values() for least, *_ in quotas}:
        lower = (row for row in judged if row["priority"] < least)
        for (kind, scope), members in _places(lower).items():
            left = [quota for floor, *quota in kept.get(kind, ()) if floor == least]
            for excess in excesses([*members.values()], left):
                yield f"{kind} {scope} was promised {excess} below priority {least}"


def broken_limits(history: History) -> Iterator[str]:
    """Sends, at their begin and where they were accepted, fit every limit.

    Those are left out that a freeze of their worker carried past the end of its claim: nothing
    but the provider can stop them, and the design says so. Nor does a limit hold at the end of a
    send that takes longer than a transport may.
    """
    longest_us = history.terms["longest_ms"] * 1_000
    begun: dict[tuple[str, str], list[int]] = defaultdict(list)
    taken: dict[tuple[str, str], list[int]] = defaultdict(list)
    for send in history.sends:
        if is_frozen(send, history):
            continue
        channel = f"channel {send.begin['channel']}"
        further = [(f"{kind} {name}", "") for kind, name in send.begin.get("scopes", {}).items()]
        for name in (("scope", send.begin["scope"]), (channel, ""), *further):
            begun[name].append(send.at)
            if send.end and send.accepted and send.end["at"] - send.at <= longest_us:
                taken[name].append(send.end["at"])
    for word, times in (("given", begun), ("accepted", taken)):
        for (kind, scope), some in times.items():
            limits = history.terms["limits"].get(kind, ())
            found = excesses(some, limits, per_ms=1_000)
            yield from (f"{kind} {scope} was {word} {excess}" for excess in found)


def too_many_in_hand(history: History) -> Iterator[str]:
    for channel, most in history.terms["concurrency"].items():
        moments: list[tuple[int, int]] = []
        for send in history.sends:
            if send.begin["channel"] == channel and send.end and not is_frozen(send, history):
                moments += [(send.at, 1), (send.end["at"], -1)]
        in_hand = highest = 0
        for _, step in sorted(moments):
            in_hand += step
            highest = max(highest, in_hand)
        if highest > most:
            yield f"{highest} of channel {channel} were in hand at a time, {most} may be"


def false_windows(history: History) -> Iterator[str]:
    windows = history.places
    expected = _places(row for row in history.rows.values() if "deleted_at" not in row)
    for name in sorted(expected.keys() | windows.keys()):
        should, does = expected.get(name, {}), windows.get(name, {})
        of = " ".join(name).strip()
        yield from (f"{of}: {id_} has no reservation" for id_ in should.keys() - does.keys())
        yield from (f"{of}: {id_} has a needless one" for id_ in does.keys() - should.keys())
        for id_ in should.keys() & does.keys():
            if should[id_] != does[id_]:
                yield f"{of}: {id_} is reserved at {does[id_]} instead of {should[id_]}"


def is_frozen(send: Send, history: History) -> bool:
    """Whether the worker was frozen in or right before this send, for as long as one lasts."""
    longest_us = history.terms["longest_ms"] * 1_000
    end = send.end["at"] if send.end else send.at
    return any(
        fault["at"] <= end and send.at <= fault["until"] + _AFTER_A_FREEZE_US
        for fault in history.faults
        if send.begin["pid"] in fault.get("pids", ()) and fault["until"] - fault["at"] >= longest_us
    )


def _places(rows: Iterable[Line]) -> dict[tuple[str, str], dict[str, int]]:
    """Return what the windows of kinds and scopes should hold of these messages."""
    places: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in rows:
        if row["status"] not in _HOLD_NO_PLACE:
            for kind, scope in row["scopes"]:
                places[kind, scope][place_of(row["id"], row["tail"])] = row["send_at_ms"]
    return places


def early_or_expired(history: History) -> Iterator[str]:
    """Nothing begins before a time that it was promised for, or after its expiry."""
    moves = history.changes("reschedule")
    for send in history.sends:
        row = history.rows.get(send.id)
        if row is None:
            continue
        promised = [*history.submits_of(row), *moves.get(send.id, ())]
        times = possible(promised, send.at, "send_at_ms")
        due = send.begin["send_at_ms"]
        if times and not row.get("event"):  # what is sent by then stays when its event moves
            due = min(times)
        if send.at < due * 1_000:
            yield f"{send.id} was sent {due - send.at / 1_000:.3f} ms early"
        expiry = row["expires_at_ms"]
        is_late = expiry is not None and send.at > expiry * 1_000 + history.terms["expiry_slack_us"]
        if is_late and not is_frozen(send, history):
            yield f"{send.id} was sent {send.at / 1_000 - expiry:.0f} ms after its expiry"


def left_behind(history: History) -> Iterator[str]:
    """What was not on its way yet goes where its event goes, and ends with it."""
    of_events = history.of_events()
    for send in history.sends:
        row, due = history.rows.get(send.id), send.begin["send_at_ms"]
        calls = of_events.get((row or {}).get("event") or "", [])
        if row is None or not calls:
            continue
        latest = due * 1_000 - _CLAIMED_AHEAD_US
        begun = [call for call in calls if call.op == "add_series" and call.at <= send.at]
        last = max((call.until for call in begun), default=0)  # a name may be used again
        ends = [call for call in calls if call.op in _EVENT_ENDS and call.answer == "ok"]
        if any(last <= call.at and call.until <= latest for call in ends):
            yield f"{send.id} was sent for {due} though {row['event']} had ended"
        moves = [call for call in calls if "event_at_ms" in call.asked and call.answer != "refused"]
        times = possible(moves, latest, "event_at_ms")
        times |= {call.asked["event_at_ms"] for call in moves if call.at > latest}
        offsets = {call.asked.get("offset_ms") for call in history.submits_of(row)} - {None}
        if offsets and not any(due - offset in times for offset in offsets):
            yield f"{send.id} was sent for {due} though {row['event']} had moved"


def false_occurrences(history: History) -> Iterator[str]:
    """Each occurrence that was to be booked has one message, and none is begun once replaced."""
    booked: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in filter(is_occurrence, history.rows.values()):
        _, token, nominal = row["key"].split(":", 2)
        for known in ("", token.partition(".")[0]):  # behind it is a digest of the recipient
            booked[row["event"], row["scope"], known, nominal].append(row["id"])
    for line in history.occurrences:
        event, nominal = line["event"], line["nominal"]
        ids = booked[event, line["scope"], line["token"], nominal]
        if not ids and "until" not in line:
            yield f"{event} has no message at {nominal} for {line['scope']}"
        if len(ids) > 1:
            yield f"{event} has {len(ids)} messages at {nominal} for {line['scope']}"
        for id_ in ids:
            first = min(history.attempts.get(id_, ()), key=lambda a: a["token"], default=None)
            # One with a later token may have been in hand before, and put back.
            if first and first["token"] == 1 and first["started_at"] > line.get("until", NEVER):
                yield f"{id_} was sent for {nominal}, which {event} does not have any more"


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
    accepted = sorted(send.end["at"] for send in history.sends if send.end and send.accepted)
    times = []
    place = 0
    for fault in sorted(history.faults, key=lambda line: int(line["until"])):
        if not fault["done"]:
            continue
        while place < len(accepted) and accepted[place] <= fault["until"]:
            place += 1
        if place < len(accepted):
            times.append((str(fault["fault"]), (accepted[place] - fault["until"]) / 1_000))
    return times


def possible(calls: Sequence[Call], at: int, name: str) -> set[Any]:
    """Return the values that calls may have given a message by then.

    Those of the last calls that were confirmed, of which any may be the last where they overlap,
    and those of all that may have happened.
    """
    values, confirmed = set(), list[Call]()
    for call in calls:
        if call.answer == "refused" or call.at > at:
            continue
        if call.answer == "ok" and call.until <= at:
            confirmed.append(call)
        else:
            values |= {call.told.get(name, call.asked.get(name)), call.asked.get(name)}
    last = max((call.at for call in confirmed), default=0)
    values |= {c.told.get(name, c.asked.get(name)) for c in confirmed if c.until >= last}
    return values - {None}


def _was_frozen(call: Call, history: History) -> bool:
    return any(
        call.asked.get("pid") in fault.get("pids", ())
        and fault["at"] <= call.until
        and call.at <= fault["until"]
        for fault in history.faults
    )


def strays(history: History) -> Iterator[str]:
    """What a receiver has was sent, once, and arrived as it was."""
    for line in history.strays:
        yield f"{line['id']} reached its receiver in a send that nobody began"
    for send in history.sends:
        if send.end and send.end.get("digest", send.begin["digest"]) != send.begin["digest"]:
            yield f"{send.id} reached its receiver with other content than was sent"


def other_ids(history: History) -> Iterator[str]:
    """However often a message comes, it comes under the same id."""
    ids: dict[str, set[str]] = defaultdict(set)
    ends = [send.end for send in history.sends if send.end]
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
    for send in history.sends:
        word = send.called and send.called["how"]
        if word == "sent" and not (send.accepted and send.end and send.end.get("answered")):
            yield f"attempt {send.attempt} of {send.id} was called sent, and nobody confirmed it"
        elif word in _NOT_TAKEN and send.accepted:
            yield f"attempt {send.attempt} of {send.id} was called {word}, and its receiver has it"


def delays_told_again(history: History) -> Iterator[str]:
    """A delay is told once for each time that a message was promised for."""
    moves, of_events = history.changes("reschedule"), history.of_events()
    for id_, times in Counter(line["id"] for line in history.delays).items():
        event = history.rows.get(id_, {}).get("event")
        moves_of_event = [
            call for call in of_events.get(event or "", ()) if call.op == "move_event"
        ]
        calls = [*moves.get(id_, ()), *moves_of_event]
        most = 1 + sum(call.answer != "refused" for call in calls)
        if times > most:
            yield f"the delay of {id_}, which had {most} times at most, was told {times} times"


def unproven(history: History) -> Iterator[str]:
    begun = history.by_message()
    for id_, tries in history.attempts.items():
        accepted = {send.attempt for send in begun.get(id_, ()) if send.accepted}
        for number, line in enumerate(tries, 1):
            if line["outcome"] == "sent" and number not in accepted:
                yield f"attempt {number} of {id_} counts as sent, and nobody has accepted it"


INVARIANTS: Mapping[str, Sequence[Callable[[History], Iterator[str]]]] = {
    "I1 no loss": [lost],
    "I2 no phantom": [phantoms, strays],
    "I3 quotas and limits": [broken_quotas, broken_limits, too_many_in_hand],
    "I4 no known duplicate": [sent_twice],
    "I5 a refusal leaves no trace": [traces_of_refusals],
    "I6 a cancel is final": [false_cancels],
    "I7 neither early nor expired": [early_or_expired],
    "I8 idempotent keys": [false_duplicates, other_ids],
    "I9 windows are what SQL says": [false_windows],
    "I10 tokens grow": [false_tokens, false_attempts],
    "I11 recovery": [slow_recoveries],
    "I12 answers in time": [slow_answers],
    "I14 ends are final": [changed_ends],
    "I15 no secret in a log": [leaks],
    "I16 accounts": [false_accounts],
    "I17 what is called sent is there": [untrue_words, unproven],
    "I18 a delay is told once": [delays_told_again],
    "I19 reminders follow": [left_behind],
    "I20 occurrences are booked once": [false_occurrences],
}
"""I13, fairness, needs a run without faults to compare with; the benchmarks look at it."""


def _is_promise(call: Call) -> bool:
    """Whether an answer says that a message will be sent: one may be told of a cancelled one."""
    return call.answer == "ok" and call.told.get("status") != "cancelled"


def _accepted(history: History) -> set[str]:
    promises = (call for call in history.calls if call.op in SUBMITS and _is_promise(call))
    return {call.told["id"] for call in promises if "id" in call.told}


def _gave_key_back(id_: str, at: int, history: History) -> bool:
    """Whether a message was deleted by then, or had ended and nobody can have it."""
    row = history.rows[id_]
    if row.get("deleted_at", NEVER) < at:
        return True
    has_ended = row["status"] in _UNSENT and row["ended_at"] <= at
    return has_ended and _NOT_TAKEN.issuperset(_outcomes(id_, history))


def _outcomes(id_: str, history: History) -> list[str | None]:
    return [line["outcome"] for line in history.attempts.get(id_, ())]


def _outcome(tries: Sequence[Line], number: int) -> str | None:
    return tries[number - 1]["outcome"] if 0 < number <= len(tries) else None


def _may_become(ended: str, status: str) -> bool:
    return status == ended or (ended, status) == ("failed", "sent")


def _could_be_known(tries: Sequence[Line], number: int) -> bool:
    outcome = _outcome(tries, number)
    if outcome == "unknown":
        return False
    if number >= len(tries) or outcome is None:
        return True
    return bool(tries[number - 1]["finished_at"] < tries[number]["started_at"])


def _released(id_: str, history: History) -> bool:
    return any(call.answer != "refused" for call in history.changes("release").get(id_, ()))
