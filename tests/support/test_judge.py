"""The judge of histories finds each kind of broken promise, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.history import Recorder, read
from tests.support.judge import INVARIANTS, judge

Lines = list[dict[str, Any]]
ANN, BEN = "ann's", "ben's"
SECOND = 1_000_000
DUE_MS = 10_000
DUE = DUE_MS * 1_000

TERMS: dict[str, Any] = {
    "kind": "terms",
    "expiry_slack_us": 500_000,
    "at": 0,
    "quotas": {"": [[1, 1_000]], "recipient.text": [[1, 2_000]]},
    "limits": {"scope": [[1, 1_000]], "channel mail": [[2, 500]], "tenant acme": [[1, 1_000]]},
    "concurrency": {"mail": 1},
    "longest_ms": 1_000,
    "recovery_ms": 5_000,
    "answer_ms": 9_000,
}


def submit(
    id_: str = ANN, *, at: int = SECOND, n: str = "1", answer: str = "ok", **fields: Any
) -> Lines:
    told = {"id": id_, "status": "scheduled", "send_at_ms": DUE_MS, "digest": f"digest {id_}"}
    told = told if answer == "ok" else {}
    asked = {"tag": f"tag {id_}", "key": None, "digest": f"digest {id_}", "send_at_ms": DUE_MS}
    return call("submit", n=n, at=at, answer=answer, asked=asked | fields, told=told | fields)


def call(
    op: str,
    *,
    n: str,
    at: int,
    answer: str = "ok",
    asked: dict[str, Any] | None = None,
    told: dict[str, Any] | None = None,
    takes: int = 1_000,
) -> Lines:
    return [
        {"kind": "call", "at": at, "n": n, "op": op, "who": "c", "pid": 7} | (asked or {}),
        {"kind": "answer", "at": at + takes, "n": n, "answer": answer} | (told or {}),
    ]


def change(op: str, id_: str = ANN, *, at: int = 2 * SECOND, answer: str = "ok", **f: Any) -> Lines:
    return call(op, n=f"{op}{at}", at=at, answer=answer, asked={"id": id_} | f)


def row(id_: str = ANN, status: str = "sent", **fields: Any) -> Lines:
    usual = {
        "kind": "row", "at": 99 * SECOND, "id": id_, "tag": f"tag {id_}", "status": status,
        "ended_at": 90 * SECOND, "channel": "mail", "scope": id_, "token": 9,
        "attempt_count": 1, "max_attempts": 5,
        "send_at_ms": DUE_MS, "expires_at_ms": None, "key": None, "digest": f"digest {id_}",
        "on_unknown": None, "tail": "", "scopes": [("", fields.get("scope", id_))],
    }  # fmt: skip
    return [usual | fields]


def place(id_: str = ANN, at_ms: int = DUE_MS, scope: str | None = None) -> Lines:
    line = {"kind": "place", "at": 99 * SECOND, "of": "", "scope": scope or id_, "id": id_}
    return [line | {"at_ms": at_ms}]


def send(
    id_: str = ANN,
    *,
    at: int = DUE,
    attempt: int = 1,
    end: str | None = "accept",
    takes: int = 5_000,
    **fields: Any,
) -> Lines:
    base: dict[str, Any] = {"id": id_, "attempt": attempt, "pid": 1}
    begin = base | {
        "kind": "begin", "at": at, "scope": id_, "channel": "mail", "send_at_ms": DUE_MS,
        "digest": f"digest {id_}",
    }  # fmt: skip
    lines = [begin | fields]
    if end:
        lines.append(base | {"kind": end, "at": at + takes} | fields)
    return lines


def received(called: str, *, answered: bool = True, id_: str = ANN, **fields: Any) -> Lines:
    end = {"tag": f"tag {ANN}", "answered": answered, "digest": f"digest {ANN}"}
    begin, known = send()
    word = {"kind": "called", "id": ANN, "attempt": 1, "pid": 1, "at": DUE + 6_000}
    return [begin, known | end | {"id": id_} | fields, word | {"how": called}]


def attempt(
    outcome: str | None = "sent", *, token: int = 1, at: int = DUE, until: int = DUE + 9_000,
    id_: str = ANN,
) -> Lines:  # fmt: skip
    return [
        {
            "kind": "attempt", "at": 99 * SECOND, "id": id_, "token": token, "started_at": at,
            "finished_at": until if outcome else None, "outcome": outcome,
        }
    ]  # fmt: skip


def fault(at: int = 2 * SECOND, until: int = 2 * SECOND, pids: Iterable[int] = ()) -> Lines:
    line = {"kind": "fault", "at": at, "until": until, "fault": "worker.freeze", "target": "w"}
    return [line | {"pids": list(pids), "done": True}]


def seen(status: str, token: int = 1, at: int = 20 * SECOND) -> Lines:
    return [{"kind": "seen", "at": at, "id": ANN, "status": status, "token": token}]


SENT = [*submit(), *send(), *attempt(), *row(), *place()]
TWICE = [
    *submit(), *row(attempt_count=2), *place(), *send(), *send(at=DUE + 3 * SECOND, attempt=2),
    *attempt(token=2, at=DUE + 3 * SECOND, until=DUE + 4 * SECOND),
]  # fmt: skip
CANCELLED = [*submit(), *row(status="cancelled", attempt_count=0)]

REMINDER: dict[str, Any] = {"event": "e", "offset_ms": -1_000, "event_at_ms": DUE_MS + 1_000}
REMINDED = [*submit(**REMINDER), *send(), *attempt(), *row(event="e"), *place()]
SERIES = {"event": "series:s", "tag": f"tag {ANN}", "digest": f"digest {ANN}"}
ADDED = call("add_series", n="a", at=SECOND, asked=SERIES)
REMOVED = call("remove_series", n="r", at=60 * SECOND, asked={"event": "series:s"})
OCCURRENCE: dict[str, Any] = {"event": "series:s", "key": "series:t:1970-01-01T00:00:10Z"}


def booked(token: str = "", **more: Any) -> Lines:
    line = {"kind": "occurrence", "at": 0, "event": "series:s", "scope": ANN, "token": token}
    return [line | {"nominal": "1970-01-01T00:00:10Z"} | more]


OTHER = {"key": "k", "tag": f"tag {ANN}", "digest": "digest other", "send_at_ms": DUE_MS}

GOOD: dict[str, Lines] = {
    "a reminder that has followed its event": [
        *submit(**REMINDER | {"event_at_ms": 50_000}, send_at_ms=49_000), *REMINDED[2:],
        *change("move_event", event="e", event_at_ms=DUE_MS + 1_000),
    ],
    "on its way when its event moved, and ended": [
        *REMINDED, *change("move_event", event="e", event_at_ms=90_000, at=DUE - SECOND // 2),
        *change("cancel_event", event="e", at=DUE),
    ],
    "cancelled with its event": [
        *submit(**REMINDER), *change("cancel_event", event="e"),
        *row(status="cancelled", event="e", attempt_count=0),
    ],
    "cancelled by a move of its event": [
        *submit(**REMINDER), *change("move_event", event="e", event_at_ms=2_000, past="cancel"),
        *row(status="cancelled", event="e", attempt_count=0),
    ],
    "an occurrence": [
        *ADDED, *booked(), *booked("t"), *booked("u", until=0), *send(), *attempt(),
        *row(**OCCURRENCE), *place(), *REMOVED,
    ],
    "a name used again": [
        *ADDED, *change("remove_series", event="series:s"), *call(
            "add_series", n="b", at=8 * SECOND, asked=SERIES
        ), *send(), *attempt(), *row(**OCCURRENCE), *place(), *REMOVED,
    ],
    "moved twice at once": [
        *REMINDED,
        *(line for ms, takes in ((90_000, SECOND), (DUE_MS + 1_000, 9)) for line in call(
            "move_event", n=f"m{ms}", at=2 * SECOND, takes=takes,
            asked={"event": "e", "event_at_ms": ms},
        )),
    ],
    "sent once": SENT,
    "refused under a key, and cancelled": [
        *submit(answer="refused", key="k"), *row(status="cancelled", key="k", attempt_count=0)
    ],
    "sent again before a late record came": [*TWICE, *attempt(until=DUE + 5 * SECOND)],
    "failed, then known to be sent": [*SENT, *seen("failed"), *seen("sent")],
    "two a period apart": [
        *SENT, *submit(BEN, n="2"), *row(BEN, scope=ANN, send_at_ms=11_000),
        *place(BEN, 11_000, scope=ANN), *send(BEN, at=DUE + SECOND, scope=ANN),
        *attempt(id_=BEN),
    ],
    "two too near, one of them frozen": [
        *SENT, *submit(BEN, n="2"), *row(BEN), *place(BEN), *attempt(id_=BEN),
        *send(BEN, at=DUE + 20_000, scope=ANN, pid=2),
        *fault(DUE - 2 * SECOND, DUE, pids=[2]),
    ],
    "unknown, and with its receiver": [
        *submit(), *received("unknown", answered=False), *attempt("unknown"),
        *row(status="failed", max_attempts=1), *place(),
    ],
    "a key of what was deleted": [
        *SENT[:-2], *row(key="k", deleted_at=50 * SECOND), *submit(key="k"),
        *submit(BEN, n="2", at=60 * SECOND, key="k"), *send(BEN, at=70 * SECOND),
        *attempt(id_=BEN), *row(BEN, key="k"), *place(BEN),
    ],
    "a key that was free again before its answer came": [
        *submit(key="k", at=5 * SECOND), *change("cancel", at=2 * SECOND),
        *row(status="cancelled", key="k", ended_at=3 * SECOND, attempt_count=0),
        *submit(BEN, n="2", at=4 * SECOND, key="k"), *send(BEN), *attempt(id_=BEN),
        *row(BEN, key="k"), *place(BEN),
    ],
    "kept at its time, whoever has it": [
        *SENT, *submit(BEN, n="2"), *row(BEN, scope=ANN, kept_late=True), *place(BEN, scope=ANN),
        *send(BEN, at=DUE + SECOND), *attempt(id_=BEN),
    ],
    "told that a message is cancelled": [
        *submit(key="k", status="cancelled"), *row(status="cancelled", key="k", attempt_count=0)
    ],
    "a slow answer of a frozen client": [
        *SENT, *call("get", n="2", at=SECOND, takes=10 * SECOND, asked={"id": BEN}),
        *fault(2 * SECOND, 8 * SECOND, pids=[7]),
    ],
}  # fmt: skip

BAD: dict[str, tuple[str, str, Lines]] = {
    "accepted and gone": ("I1", "is not stored", submit()),
    "not ended": ("I1", "is still scheduled", [*submit(), *row(status="scheduled"), *place()]),
    "never sent": ("I1", "never was", [*submit(), *row(), *place()]),
    "failed early": ("I1", "without a reason", [*submit(), *row(status="failed"), *place()]),
    "expired by itself": ("I1", "never expires", [*submit(), *row(status="expired")]),
    "held for nothing": ("I1", "is held for no reason", [*SENT[:-2], *row(status="held")]),
    "held though to be retried": ("I1", "is held for no reason", [
        *SENT[:-2], *attempt("unknown"), *row(status="held", on_unknown="retry"),
    ]),
    "cancelled by nobody": ("I1", "nobody asked for", CANCELLED),
    "sent from nowhere": ("I2", "never submitted", send()),
    "stored from nowhere": ("I2", "never submitted", [*row(), *place()]),
    "other content": ("I2", "nobody asked for", [
        *submit(), *send(digest="x"), *attempt(), *row(), *place(),
    ]),
    "changed after it was sent": ("I2", "other content than SQL holds", [
        *SENT[:-2], *row(digest="other"), *place(),
    ]),
    "arrived from nowhere": ("I2", "that nobody began", [*SENT, *send(attempt=2)[1:]]),
    "arrived with other content": ("I2", "other content than was sent", [
        *submit(), *received("sent", digest="other"), *attempt(), *row(), *place(),
    ]),
    "quota of a scope": ("I3", "promised more than 1 within 1000 ms", [
        *SENT, *submit(BEN, n="2"), *row(BEN, scope=ANN, send_at_ms=10_999),
        *place(BEN, 10_999, scope=ANN), *send(BEN, at=DUE + 2 * SECOND), *attempt(id_=BEN),
    ]),
    "limit of a scope": ("I3", "scope ann's was given more than 1 within 1000 ms (999.999 ms)", [
        *SENT, *send(BEN, at=DUE + 999_999, scope=ANN),
    ]),
    "limit at the other end": ("I3", "scope ann's was accepted more than 1", [
        *submit(), *send(takes=900_000), *send(BEN, at=DUE + SECOND, scope=ANN),
    ]),
    "limit of a channel": ("I3", "channel mail  was given more than 2 within 500 ms", [
        *SENT, *send(BEN, at=DUE + 100_000), *send("c", at=DUE + 200_000),
    ]),
    "too many in hand": ("I3", "2 of channel mail were in hand", [
        *SENT, *send(BEN, at=DUE + 1_000),
    ]),
    "known and sent again": ("I4", "attempt 1 was known to be sent", [*TWICE, *attempt()]),
    "one attempt, two sends": ("I4", "twice in one attempt", [
        *SENT, *send(at=DUE + 3 * SECOND),
    ]),
    "held and sent again": ("I4", "though it was to be held", [
        *submit(), *send(), *send(at=DUE + 3 * SECOND, attempt=2), *attempt("unknown"),
        *attempt(token=2, at=DUE + 3 * SECOND), *row(on_unknown="hold"), *place(),
    ]),
    "refused and stored": ("I5", "was refused and is stored", [
        *submit(answer="refused"), *row(status="cancelled"),
    ]),
    "refused and sent": ("I5", "was refused and sent", [
        *submit(answer="refused"), *SENT[2:],
    ]),
    "cancelled and sent": ("I6", "was sent though it was cancelled", [
        *CANCELLED, *change("cancel"), *send(),
    ]),
    "cancelled and not": ("I6", "was cancelled but is sent", [*SENT, *change("cancel")]),
    "denied and cancelled": ("I6", "told that it is not", [
        *CANCELLED, *change("cancel", answer="refused"),
    ]),
    "early": ("I7", "0.001 ms early", [
        *submit(), *send(at=DUE - 1), *attempt(), *row(), *place(),
    ]),
    "before its new time": ("I7", "2000.000 ms early", [
        *SENT, *change("reschedule", send_at_ms=12_000),
    ]),
    "after its expiry": ("I7", "600 ms after its expiry", [
        *submit(), *send(at=DUE + 1_600_000), *attempt(), *row(expires_at_ms=11_000),
        *place(),
    ]),
    "a key, two messages": ("I8", f"key k gave {ANN} and {BEN}", [
        *submit(key="k"), *submit(BEN, key="k", n="2"), *row(key="k"),
        *row(BEN),
    ]),
    "a key of what may have been sent": ("I8", f"key k gave {ANN} and {BEN}", [
        *submit(key="k"), *submit(BEN, key="k", n="2", at=95 * SECOND),
        *row(status="failed", key="k"), *attempt("unknown"), *row(BEN),
    ]),
    "a key, two rows": ("I8", "key k has 2 rows", [
        *row(key="k"), *row(BEN, key="k"),
    ]),
    "arrived under another id": ("I8", f"tag {ANN} reached its receiver under 2 ids", [
        *SENT, *received("sent"), *received("sent", id_=BEN),
    ]),
    "a key, two contents": ("I8", "key k was taken for 2 contents", [
        *submit(key="k"), *SENT[2:],
        *call("conflict", n="2", at=SECOND, asked=OTHER, told={
            "id": ANN, "status": "scheduled", "send_at_ms": DUE_MS, "digest": f"digest {ANN}",
        }),
    ]),
    "a needless reservation": ("I9", "needless", [*CANCELLED, *place()]),
    "no reservation": ("I9", "ann's has no reservation", SENT[:-1]),
    "reserved elsewhere": ("I9", "is reserved at 10001 instead of 10000", [
        *SENT[:-1], *place(at_ms=10_001),
    ]),
    "a try too many": ("I10", "counts 2 tries and has 1", [*SENT[:-2], *row(attempt_count=2)]),
    "a try without an end": ("I10", "has ended and a try of it has not", [*SENT, *attempt(None)]),
    "a token twice": ("I10", "used a token twice", [*SENT, *attempt()]),
    "a token of old": ("I10", "an older token after a newer one", [
        *SENT, *attempt(token=2, at=DUE - 5),
    ]),
    "a token that shrank": ("I10", "showed token 1 after 2", [
        *SENT, *seen("sending", 2), *seen("sending", 1, at=21 * SECOND),
    ]),
    "a token behind": ("I10", "older than its last attempt", [*SENT, *attempt(token=10)]),
    "no recovery": ("I11", "8005 ms after worker.freeze", [*SENT, *fault()]),
    "a slow answer": ("I12", "a get of c took 10000 ms", [
        *SENT, *call("get", n="2", at=SECOND, takes=10 * SECOND, asked={"id": BEN}),
    ]),
    "an end that changed": ("I14", "was cancelled and is sent", [*SENT, *seen("cancelled")]),
    "an end that a client did not see": ("I14", "then a client was told sending", [
        *SENT, *seen("sent"), *call("get", n="2", at=30 * SECOND, told={
            "id": ANN, "status": "sending",
        }),
    ]),
    "a secret in a log": ("I15", "worker.log tells canary", [
        *SENT, {"kind": "leak", "at": 0, "log": "worker.log", "secret": "canary"},
    ]),
    "accounts": ("I16", "1 were accepted, and {} is what came of them", submit()),
    "taken, but failed": ("I16", "was accepted by the provider and is failed", [
        *submit(), *send(), *attempt("permanent"), *row(status="failed"), *place(),
    ]),
    "called sent, and not confirmed": ("I17", "was called sent, and nobody confirmed it", [
        *submit(), *received("sent", answered=False), *attempt(), *row(), *place(),
    ]),
    "called a failure, and there": ("I17", "was called temporary, and its receiver has it", [
        *submit(), *received("temporary", answered=False), *attempt("temporary"),
        *row(status="failed", attempt_count=5), *place(),
    ]),
    "too much for a scope with limits of its own": ("I3", "tenant acme  was given more than 1", [
        *(line for at in (0, 999_999) for line in send(at=DUE + at, scopes={"tenant": "acme"})),
    ]),
    "a delay told again": ("I18", "was told 2 times", [
        *SENT, *2 * [{"kind": "delayed", "at": DUE, "id": ANN, "limit": "tenant: 1/second"}],
    ]),
    "left behind by its event": ("I19", "though e had moved", [
        *REMINDED, *change("move_event", event="e", event_at_ms=90_000),
    ]),
    "sent though its event had ended": ("I19", "though e had ended", [
        *REMINDED, *change("cancel_event", event="e"),
    ]),
    "cancelled before its event": ("I1", "which nobody asked for", [
        *submit(**REMINDER), *change("cancel_event", event="e", at=95 * SECOND),
        *row(status="cancelled", event="e", attempt_count=0),
    ]),
    "an occurrence without a message": ("I20", "no message at 1970-01-01T00:00:10Z", booked("u")),
    "an occurrence booked twice": ("I20", "2 messages at 1970-01-01T00:00:10Z", [
        *booked(), *row(**OCCURRENCE), *row(BEN, scope=ANN, **OCCURRENCE | {
            "key": "series:u.0123456789abcdef:1970-01-01T00:00:10Z",
        }),
    ]),
    "an occurrence that was replaced": ("I20", "which series:s does not have any more", [
        *booked("t", until=DUE - 1), *send(), *attempt(), *row(**OCCURRENCE),
    ]),
    "an attempt that counts as sent": ("I17", "counts as sent, and nobody has accepted it", [
        *TWICE, *attempt("unknown"), *attempt(token=3, at=DUE + 5 * SECOND),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_breaks_nothing(name: str) -> None:
    assert judge([TERMS, *GOOD[name]]) == []


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_told(name: str) -> None:
    invariant, text, lines = BAD[name]
    told = judge([TERMS, *lines])
    assert any(
        violation.invariant.split()[0] == invariant and text in violation.text for violation in told
    ), told


def test_where_all_are_to_be_sent_another_end_is_told() -> None:
    failed = [*submit(), *send(), *attempt("permanent"), *row(status="failed", max_attempts=1)]
    told = judge([TERMS | {"ends": ["sent", "cancelled"]}, *failed, *place()])
    assert f"{ANN} is still failed" in {violation.text for violation in told}


def test_each_invariant_has_a_history_that_breaks_it() -> None:
    assert {name.split()[0] for name in INVARIANTS} == {
        invariant for invariant, _, _ in BAD.values()
    }


def test_the_order_of_the_lines_does_not_matter() -> None:
    assert judge([*reversed(SENT), TERMS]) == []


def test_a_line_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="strange"):
        judge([TERMS, {"kind": "strange", "at": 0}])


def test_a_line_that_a_killed_process_has_torn_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recorder = Recorder(path)
    recorder.write("first", text="a\u2028b")
    with path.open("a") as file:
        file.write('{"kind": "torn", "at": 1, "text": "half')
    recorder.write("next")
    recorder.write("last")
    recorder.close()
    with path.open("a") as file:
        file.write('{"kind": "torn", "at"')
    assert [line["kind"] for line in read(path)] == ["first", "next", "last"]
