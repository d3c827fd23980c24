"""Which promises a history breaks. Pure: lines go in, sentences come out.

The judge believes clients and the provider first; what the system wrote of itself only tells
outcomes that could be known from those that could not. A call without an answer, or with one that
leaves it open, may have happened or not, and later than its answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.soak.counting import (
    broken_limits,
    broken_quotas,
    false_windows,
    is_frozen,
    too_many_in_hand,
)
from tests.soak.history import ENDED, FINAL, NEVER, SUBMITS, Call, History, Line
from tests.soak.receiving import other_ids, strays, unproven, untrue_words
from tests.soak.timing import (
    early_or_expired,
    possible,
    recoveries,
    slow_answers,
    slow_recoveries,
)

_UNSENT = frozenset({"cancelled", "expired", "failed"})
_NOT_TAKEN = frozenset({"temporary", "permanent"})


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
    for id_ in sorted(_accepted(history) - history.rows.keys()):
        yield f"{id_} was accepted but is not stored"
    for id_, row in history.rows.items():
        status = row["status"]
        known = begun.get(id_, [])
        if status not in ENDED:
            yield f"{id_} is still {status}"
        elif status == "sent" and not any(each.accepted for each in known):
            yield f"{id_} counts as sent but never was"
        elif status == "failed" and not (
            any(each.end and each.end.get("how") == "permanent" for each in known)
            or row["attempt_count"] >= row["max_attempts"]
        ):
            yield f"{id_} failed without a reason"
        elif status == "expired" and row["expires_at_ms"] is None:
            yield f"{id_} expired though it never expires"
        elif status == "cancelled" and not any(
            each.answer != "refused" for each in cancels.get(id_, ())
        ):
            accepted = [each for each in history.submits_of(row) if _is_promise(each)]
            if accepted:
                yield f"{id_} was accepted and is cancelled, which nobody asked for"


def phantoms(history: History) -> Iterator[str]:
    """What reached the provider was submitted, with this content."""
    updates = history.changes("update")
    for each in history.sends:
        row = history.rows.get(each.id)
        calls = history.submits_of(row) if row else []
        if row is None or not calls:
            yield f"{each.id} was sent but never submitted"
            continue
        digests = possible([*calls, *updates.get(each.id, ())], each.at, "digest")
        if each.begin["digest"] not in digests:
            yield f"{each.id} was sent with content that nobody asked for"
    sent = defaultdict(set)
    for each in history.sends:
        if each.accepted:
            sent[each.id].add(each.begin["digest"])
    for id_, row in history.rows.items():
        if row["status"] == "sent" and sent[id_] and row["digest"] not in sent[id_]:
            yield f"{id_} was sent with other content than SQL holds"
    tags = {call.asked["tag"] for call in history.calls if call.op == "submit"}
    for row in history.rows.values():
        if row["tag"] not in tags:
            yield f"{row['id']} is stored but was never submitted"


def sent_twice(history: History) -> Iterator[str]:
    """Each send but the last has an outcome that nobody could know before the next one.

    The n-th attempt that SQL keeps is the one that the provider calls n.
    """
    for id_, several in history.by_message().items():
        numbers = [each.attempt for each in several]
        if len(set(numbers)) < len(numbers):
            yield f"{id_} was sent twice in one attempt"
        accepted = [each for each in several if each.accepted]
        row = history.rows.get(id_, {})
        if row.get("on_unknown") == "hold" and len(accepted) > 1 and not _released(id_, history):
            yield f"{id_} was accepted {len(accepted)} times though it was to be held"
        tries = history.attempts.get(id_, [])
        for each in accepted:
            if each.attempt < numbers[-1] and _could_be_known(tries, each.attempt):
                yield f"{id_} was sent again though attempt {each.attempt} was known to be sent"


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
            for each in begun.get(id_, ()):
                if each.at > min(confirmed) and not is_frozen(each, history):
                    yield f"{id_} was sent though it was cancelled"
        elif status == "cancelled" and all(call.answer == "refused" for call in calls):
            yield f"{id_} is cancelled though its caller was told that it is not"


def false_duplicates(history: History) -> Iterator[str]:
    """One idempotency key gives one message, and other content an error.

    A key is free once its message has ended, surely unsent: the next message is a new one.
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
        for before, later in pairwise(ids):
            if not _was_unsent(before, ids[later], history):
                yield f"key {key} gave {before} and {later}"
    keys = Counter(
        row["key"]
        for row in history.rows.values()
        if row["key"] and not _was_unsent(row["id"], NEVER, history)
    )
    yield from (f"key {key} has {many} rows" for key, many in keys.items() if many > 1)


def false_tokens(history: History) -> Iterator[str]:
    """Tokens only grow: each attempt has a greater one, begun no earlier."""
    for id_, tries in history.attempts.items():
        tokens = [each["token"] for each in tries]
        if len(set(tokens)) < len(tokens):
            yield f"{id_} used a token twice"
        if tokens and id_ in history.rows and history.rows[id_]["token"] < tokens[-1]:
            yield f"{id_} has a token older than its last attempt"
        begun = [each["started_at"] for each in tries]
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
    if sum(ends[each] for each in ENDED) != len(accepted):
        yield f"{len(accepted)} were accepted, and {dict(ends)} is what came of them"
    for id_, several in history.by_message().items():
        row = history.rows.get(id_)
        tries = history.attempts.get(id_, [])
        if row is None or row["status"] == "sent":
            continue
        untold = {"unknown", "sent"} if row["status"] in {"cancelled", "expired"} else {"unknown"}
        for each in several:
            if each.accepted and _outcome(tries, each.attempt) not in untold:
                yield f"{id_} was accepted by the provider and is {row['status']}"


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
    "I10 tokens grow": [false_tokens],
    "I11 recovery": [slow_recoveries],
    "I12 answers in time": [slow_answers],
    "I14 ends are final": [changed_ends],
    "I15 no secret in a log": [leaks],
    "I16 accounts": [false_accounts],
    "I17 what is called sent is there": [untrue_words, unproven],
}
"""I13, fairness, needs a run without faults to compare with; the benchmarks look at it."""


def _is_promise(call: Call) -> bool:
    """Whether an answer says that a message will be sent: one may be told of a cancelled one."""
    return call.answer == "ok" and call.told.get("status") != "cancelled"


def _accepted(history: History) -> set[str]:
    return {call.told["id"] for call in history.calls if call.op in SUBMITS and _is_promise(call)}


def _was_unsent(id_: str, at: int, history: History) -> bool:
    """Whether a message had ended by then, and nobody can have it."""
    row = history.rows.get(id_)
    if row is None or row["status"] not in _UNSENT or row["ended_at"] > at:
        return False
    return all(line["outcome"] in _NOT_TAKEN for line in history.attempts.get(id_, ()))


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


__all__ = ["INVARIANTS", "Violation", "judge", "recoveries"]
