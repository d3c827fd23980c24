"""A client: threads that submit, cancel, move and change, and note what they were told.

A client that comes back after its death asks again, with the same keys, for what it had no answer.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from dispatcher import Dispatcher
from dispatcher.errors import DispatcherError, OutcomeUnknown, Unavailable
from dispatcher.message import Draft, Message
from dispatcher.submission.events import Past
from dispatcher.times.send_time import to_ms
from tests.soak.contents import (
    CHANGED_SERIES,
    CHANNELS,
    OWN_LIMITS,
    OWN_QUOTAS,
    PRIORITIES,
    TENANTS,
    body_of,
    digest_of,
    people_of,
    tag_of,
)
from tests.support.history import Recorder, now_us, read

_AHEAD_SECONDS = 5.0
_TRIES = 4
_REMEMBERED = 12
_EVENTS = 9

Fields = dict[str, Any]


@dataclass(slots=True)
class Known:
    id: str
    tag: str
    fields: Fields
    changed: int = field(default=0)


class Caller:
    """One thread of a client. Its messages are its own, so its calls about one come in order."""

    def __init__(
        self, name: str, dispatcher: Dispatcher, recorder: Recorder, chance: random.Random
    ) -> None:
        self._name = name
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._chance = chance
        self._numbers = count()
        self._known: deque[Known] = deque(maxlen=_REMEMBERED)
        self._keyed: deque[Known] = deque(maxlen=_REMEMBERED)
        self._events: deque[str] = deque(maxlen=_EVENTS)

    def run(self, stopped: threading.Event, unanswered: list[Fields]) -> None:
        for fields in unanswered:
            self._submit_again(fields)
        acts: list[tuple[Callable[[], None], int]] = [
            (self._submit, 55), (self._submit_many, 9), (self._cancel, 9), (self._reschedule, 9),
            (self._update, 6), (self._repeat, 5), (self._conflict, 3), (self._look, 4),
            (self._change_own, 3), (self._change_event, 24), (self._change_series, 3),
        ]  # fmt: skip
        while not stopped.wait(self._chance.uniform(0.005, 0.06)):
            (act,) = self._chance.choices([act for act, _ in acts], [share for _, share in acts])
            act()

    def _submit(self) -> None:
        fields = self._fields()
        for _ in range(_TRIES if "idempotency_key" in fields else 1):
            answer = self._ask_to_submit(fields)
            if answer in {"ok", "refused"}:
                return
            threading.Event().wait(self._chance.uniform(0.05, 0.4))

    def _submit_again(self, fields: Fields) -> None:
        for _ in range(_TRIES):
            if self._ask_to_submit(fields) == "ok":
                return
            threading.Event().wait(0.3)

    def _ask_to_submit(self, fields: Fields, op: str = "submit") -> str:
        """Return what came of it; "unavailable" is a refusal that may be asked again."""
        number = self._call(op, fields=fields, **_asked(fields))
        try:
            message = self._dispatcher.submit(**fields)
        except OutcomeUnknown as error:
            return self._answer(number, "unknown", error)
        except Unavailable as error:
            self._answer(number, "refused", error)
            return "unavailable"
        except DispatcherError as error:
            return self._answer(number, "refused", error)
        self._accepted(number, message, fields)
        return "ok"

    def _accepted(self, number: str, message: Message, fields: Fields) -> None:
        self._answer(number, "ok", None, **_told(message))
        known = Known(str(message.id), _tag(fields), fields)
        self._known.append(known)
        if "idempotency_key" in fields:
            self._keyed.append(known)

    def _submit_many(self) -> None:
        several = [self._fields(keyed=True) for _ in range(self._chance.randint(2, 8))]
        numbers = [self._call("submit", fields=fields, **_asked(fields)) for fields in several]
        drafts = [Draft(**fields) for fields in several]
        atomic = self._chance.random() < 0.2
        try:
            results = self._dispatcher.submit_many(drafts, atomic=atomic)
        except DispatcherError as error:  # of the batch under way some may be stored
            for number in numbers:
                self._answer(number, "unknown", error)
            for fields in several[:2]:
                self._ask_to_submit(fields)
            return
        for number, fields, result in zip(numbers, several, results, strict=True):
            if isinstance(result, Message):
                self._accepted(number, result, fields)
            elif isinstance(result.error, OutcomeUnknown):
                self._answer(number, "unknown", result.error)
            else:
                self._answer(number, "refused", result.error)

    def _cancel(self) -> None:
        self._change("cancel", self._dispatcher.cancel)

    def _reschedule(self) -> None:
        at = _now() + timedelta(seconds=self._chance.uniform(0.2, _AHEAD_SECONDS))
        shift: Fields = (
            {"on_conflict": "shift", "latest": at + timedelta(seconds=2)}
            if self._chance.random() < 0.5
            else {}
        )
        # A reminder that has a time by hand follows its event no more.
        known = [known for known in self._known if "event" not in known.fields]
        if known:
            self._change(
                "reschedule",
                lambda id_: self._dispatcher.reschedule(id_, send_at=at, **shift),
                self._chance.choice(known),
                send_at_ms=to_ms(at),
            )

    def _update(self) -> None:
        if not self._known:
            return
        known = self._chance.choice(self._known)
        known.changed += 1
        fields = known.fields
        body = body_of(fields["channel"], known.tag, changed=known.changed)
        self._change(
            "update",
            lambda id_: self._dispatcher.update(id_, body=body),
            known,
            digest=digest_of(fields["channel"], fields["recipient"], body),
        )

    def _repeat(self) -> None:
        if self._keyed:
            self._ask_to_submit(self._chance.choice(self._keyed).fields)

    def _conflict(self) -> None:
        if self._keyed:
            known = self._chance.choice(self._keyed)
            other = body_of(known.fields["channel"], known.tag, text="other")
            self._ask_to_submit(known.fields | {"body": other}, op="conflict")

    def _look(self) -> None:
        self._change("get", self._dispatcher.get)

    def _change_own(self) -> None:
        """Change the quotas or limits that a tenant has of its own."""
        what = self._chance.choice(["quotas", "limits"])
        every = OWN_LIMITS if what == "limits" else dict.fromkeys(TENANTS, OWN_QUOTAS)
        tenant = self._chance.choice([*every])
        rules = self._chance.choice(every[tenant])
        how = "unset" if rules is None else "set"
        act = getattr(self._dispatcher, f"{how}_{what}")
        given = [] if rules is None else [rules]
        self._ask(what, lambda: act("tenant", tenant, *given), tenant=tenant, rules=rules)

    def _change_event(self) -> None:
        """Set an event with its first reminder, remind of one again, move it, or cancel it."""
        chance, events = self._chance, self._dispatcher.events
        at = _now() + timedelta(milliseconds=chance.randint(3_000, 20_000))
        act = chance.random()
        if act < 0.25 or not self._events:
            event = f"event {self._name}.{next(self._numbers)}"
            fields = self._reminder(event, keyed=False) | {"event_at": at.isoformat()}
            if self._ask_to_submit(fields) == "ok":
                self._events.append(event)
            return
        event = chance.choice(self._events)
        if act < 0.6:
            self._ask_to_submit(self._reminder(event))
        elif act < 0.95:
            past: Past = "cancel" if chance.random() < 0.5 else "refuse"
            move = partial(events.move, event, at, past=past)
            self._ask("move_event", move, event=event, event_at_ms=to_ms(at), past=past)
        else:
            self._events.remove(event)
            self._ask("cancel_event", partial(events.cancel, event), event=event)

    def _change_series(self) -> None:
        series, event = self._dispatcher.series, self._chance.choice(CHANGED_SERIES)
        rule = f"FREQ=MINUTELY;INTERVAL={self._chance.randint(1, 3)}"
        name = event.removeprefix("series:")
        acts: dict[str, tuple[Callable[[], object], int]] = {
            "change_series": (lambda: series.change(name, rule=rule), 8),
            "pause_series": (lambda: series.pause(name), 6),
            "resume_series": (lambda: series.resume(name), 6),
            "remove_series": (lambda: series.remove(name), 1),
        }
        (op,) = self._chance.choices([*acts], [share for _, share in acts.values()])
        self._ask(op, acts[op][0], event=event)

    def _change(
        self, op: str, act: Callable[[str], Message], known: Known | None = None, **asked: Any
    ) -> None:
        if not self._known:
            return
        about = known or self._chance.choice(self._known)
        self._ask(op, lambda: act(about.id), id=about.id, **asked)

    def _ask(self, op: str, act: Callable[[], object], **asked: Any) -> None:
        number = self._call(op, **asked)
        try:
            result = act()
        except Unavailable as error:
            # Of a refused reservation nothing is left; what a database does, nobody knows.
            is_clean = "id" in asked and type(error).__name__ == "ReservationsUnavailable"
            self._answer(number, "refused" if is_clean else "unknown", error)
        except DispatcherError as error:
            self._answer(number, "refused", error)
        else:
            told = _told(result) if isinstance(result, Message) else {}
            self._answer(number, "ok", None, **told)

    def _reminder(self, event: str, *, keyed: bool | None = None) -> Fields:
        fields = self._fields(keyed=keyed)
        for name in ("send_at", "on_conflict", "latest", "expires_at"):
            fields.pop(name, None)
        return fields | {"event": event, "offset": f"-{self._chance.randint(1, 4)} seconds"}

    def _fields(self, *, keyed: bool | None = None) -> Fields:
        chance = self._chance
        tag = f"{self._name}.{next(self._numbers)}"
        at = _now() + timedelta(seconds=chance.uniform(0.15, _AHEAD_SECONDS))
        (channel,) = chance.choices([*CHANNELS], [*CHANNELS.values()])
        fields: Fields = {
            "channel": channel,
            "recipient": chance.choice(people_of(channel)),
            "body": body_of(channel, tag),
            "send_at": at.isoformat(),
        }
        if chance.random() < 0.2:
            fields["on_unknown"] = "hold"
        if chance.random() < 0.3:
            latest = at + timedelta(seconds=3)
            fields |= {"on_conflict": "shift", "latest": latest.isoformat()}
        if chance.random() < 0.1:
            expiry = at + timedelta(seconds=chance.uniform(3.1, 6))
            fields["expires_at"] = expiry.isoformat()
        if chance.random() < 0.35:
            fields["scopes"] = {"tenant": chance.choice(TENANTS)}
        if chance.random() < 0.5:
            fields["priority"] = chance.choice(PRIORITIES)
        if keyed or (keyed is None and chance.random() < 0.6):
            fields["idempotency_key"] = f"key {tag}"
        return fields

    def _call(self, op: str, **asked: Any) -> str:
        number = f"{self._name}/{next(self._numbers)}"
        self._recorder.write("call", n=number, op=op, who=self._name, pid=os.getpid(), **asked)
        return number

    def _answer(self, number: str, answer: str, error: DispatcherError | None, **told: Any) -> str:
        name = type(error).__name__ if error else None
        self._recorder.write("answer", n=number, answer=answer, error=name, **told)
        return answer


def _tag(fields: Fields) -> str:
    return str(tag_of(fields["body"]))


def _now() -> datetime:
    return datetime.fromtimestamp(now_us() // 1_000 / 1_000, UTC)


def _asked(fields: Fields) -> Fields:
    asked = {
        "tag": _tag(fields),
        "key": fields.get("idempotency_key"),
        "digest": digest_of(fields["channel"], fields["recipient"], fields["body"]),
    }
    if "event" in fields:
        seconds = int(fields["offset"].removesuffix(" seconds"))
        asked |= {"event": fields["event"], "offset_ms": seconds * 1_000}
    times = {name for name in ("send_at", "event_at") if name in fields}
    return asked | {f"{name}_ms": to_ms(datetime.fromisoformat(fields[name])) for name in times}


def _told(message: Message) -> Fields:
    return {
        "id": str(message.id),
        "send_at_ms": to_ms(message.send_at),
        "status": message.status.value,
        "digest": digest_of(message.channel, message.recipient, message.body),
    }


def _unanswered(path: Path) -> list[Fields]:
    """Return the newest keyed submits of an earlier life that had no answer."""
    lines = read(path)
    answered = {line["n"] for line in lines if line["kind"] == "answer"}
    return [
        line["fields"]
        for line in lines
        if line["kind"] == "call" and line["op"] == "submit" and line["n"] not in answered
        if line.get("key")
    ][-3:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=3)
    options = parser.parse_args()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    path = Path(f"{options.name}.jsonl")
    unanswered = _unanswered(path)
    recorder = Recorder(path)
    life = f"{options.name}.{os.getpid()}"
    with Dispatcher() as dispatcher:
        threads = []
        for number in range(options.threads):
            chance = random.Random(f"{options.seed} {life} {number}")  # noqa: S311 - repeatable
            caller = Caller(f"{life}.{number}", dispatcher, recorder, chance)
            again = unanswered if number == 0 else []
            threads.append(threading.Thread(target=caller.run, args=(stopped, again), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
