"""The store in memory answers like the one on SQLite, and keeps the same rows."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, func, select

from dispatcher.errors import DispatcherError
from dispatcher.message import Message, Outcome, Status
from dispatcher.store import (
    Addition,
    Claim,
    Claims,
    Database,
    Failure,
    JoinedMessages,
    Messages,
    NewSlot,
    Overdue,
    StoreMaintenance,
    Success,
    Suppressions,
    UnbegunClaim,
    overdue,
)
from dispatcher.store.schema import VOID
from dispatcher.testing.memory.claims import MemoryClaims
from dispatcher.testing.memory.joined import MemoryTransaction
from dispatcher.testing.memory.messages import (
    MemoryMessages,
    MemorySuppressions,
)
from dispatcher.testing.memory.store_maintenance import MemoryOverdue, MemoryStoreMaintenance
from dispatcher.testing.memory.tables import NAMES, AttemptRow, CatchUpRules, Tables
from tests.simulation.joined import Session
from tests.support.clock import MovableClock
from tests.support.soak import a_third_of
from tests.support.tables import TABLES, attempts, keys, messages

TTL = timedelta(seconds=5)
LATE = timedelta(seconds=3)
STEPS = 200
_COLUMNS = (*NAMES, "enqueue_at", "claim_token", "claim_expires_at", "reserved",
            "move_token")  # fmt: skip


class Both:
    """The same calls to both stores, at the same time by the clocks of both."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = MovableClock()
        self.database = Database(f"sqlite:///{path}")
        event.listen(self.database.engine, "connect", self._tell_time)
        self.tables = Tables(self.clock.now)
        late = CatchUpRules(LATE, expire=["page"], reslot=["push"])
        left = overdue(TABLES, ["page", "push"], LATE)
        self.stores = [
            (Messages(self.database), MemoryMessages(self.tables)),
            (
                Claims(self.database, ttl=TTL, kept_back=left),
                MemoryClaims(self.tables, ttl=TTL, kept_back=late),
            ),
            (
                StoreMaintenance(self.database, kept_back=left),
                MemoryStoreMaintenance(self.tables, kept_back=late),
            ),
            (Suppressions(self.database), MemorySuppressions(self.tables)),
            (
                Overdue(self.database, after=LATE, expire=["page"], reslot=["push"]),
                MemoryOverdue(self.tables, late),
            ),
        ]
        self.known: list[Message] = []
        self.claims: list[Claim] = []
        self.marks: list[UUID] = []
        self.unbegun: list[UnbegunClaim] = []

    def _tell_time(self, connection: sqlite3.Connection, record: object) -> None:
        del record
        helper = sqlite3.connect(":memory:", check_same_thread=False)

        def strftime(form: str, instant: str, *shifts: str) -> str:
            if instant == "now":
                instant = self.clock.now().isoformat(" ", "milliseconds")[:23]
            marks = ", ".join("?" * (2 + len(shifts)))
            query = f"SELECT strftime({marks})"
            found: str = helper.execute(query, (form, instant, *shifts)).fetchone()[0]
            return found

        connection.create_function("strftime", -1, strftime)
        connection.execute("PRAGMA synchronous=OFF")

    def ask(self, place: int, name: str, *given: Any, **named: Any) -> Any:
        """Ask both; return their answer, which must be the same."""
        real, double = (_answer(getattr(store, name), given, named) for store in self.stores[place])
        assert double == real, name
        self.compare(name)
        return double

    def compare(self, after: str) -> None:
        """Compare every row."""
        with self.database.engine.connect() as connection:
            columns = (*(messages.c[name] for name in _COLUMNS), keys.c.fingerprint)
            of_its_key = keys.c.message_id == messages.c.id
            query = select(*columns).join(keys, of_its_key, isouter=True)
            rows = connection.execute(query).all()
            many = connection.scalar(select(func.count()).select_from(keys))
            tries = connection.execute(select(attempts)).all()
        real = {row.id: dict(row._mapping) for row in rows if row.status != VOID}
        void = {row.id: row.next_attempt_at for row in rows if row.status == VOID}
        assert self.tables.void == void, after
        double = {
            id_: {name: getattr(row, name) for name in _COLUMNS}
            | {
                "fingerprint": row.fingerprint
                if row.idempotency_key and self.tables.has_key(row)
                else None
            }
            for id_, row in self.tables.messages.items()
        }
        for each in (*real.values(), *double.values()):
            each["scopes"] = each["scopes"] or None
        assert double == real, after
        assert many == len(self.tables.keys), after
        names = AttemptRow.__slots__
        mine = (row for some in self.tables.attempts.values() for row in some.values())
        assert {tuple(getattr(row, name) for name in names) for row in mine} == {
            tuple(getattr(row, name) for name in names) for row in tries
        }, after

    def step(self) -> None:
        """Let a moment pass, then do something."""
        self.clock.advance(timedelta(milliseconds=self.rng.choice([0, 1, 300, 2_000, 6_000])))
        self.rng.choice(
            [self._add, self._add, self._change, self._claim, self._claim, self._record,
             self._put_back, self._sweep, self._sweep, self._read, self._add_many, self._opt_out,
             self._catch_up, self._join]
        )()  # fmt: skip

    def _some_id(self) -> UUID:
        return self.rng.choice(self.known).id if self.known else UUID(int=1)

    def _some_ids(self) -> list[UUID]:
        return list({self._some_id() for _ in range(4)})

    def _some_claims(self) -> list[Claim]:
        found = {self.rng.choice(self.claims).message.id: None for _ in range(3) if self.claims}
        return [
            self.rng.choice([each for each in self.claims if each.message.id == id_])
            for id_ in found
        ]

    def _wait(self) -> timedelta:
        return timedelta(milliseconds=self.rng.choice([0, 7, 900, 4_000]))

    def _message(self) -> Message:
        rng, now = self.rng, self.clock.now()
        send_at = now + self._wait()
        expires = rng.choice([None, timedelta(seconds=1), timedelta(seconds=9)])
        return Message(
            id=UUID(int=(int(now.timestamp() * 1_000) << 80) | (7 << 76) | rng.getrandbits(40)),
            channel=rng.choice(["sms", "mail", "push", "page"]),
            recipient=rng.choice(["ada", "ada", "bob"]), scope="ada", body={"n": 1},
            send_at=send_at, next_attempt_at=send_at,
            expires_at=None if expires is None else send_at + expires,
            status=Status.SCHEDULED, attempt_count=0, max_attempts=2,
            idempotency_key=rng.choice([None, "one", "two", "three"]), created_at=now,
            finished_at=None, last_error=None, on_unknown=rng.choice(["retry", "hold"]),
            expire_after=expires, trace=rng.choice([None, f"00-{5:032x}-{7:016x}-01"]),
        )  # fmt: skip

    def _add(self) -> None:
        message = self._message()
        enqueue_at = message.send_at - timedelta(seconds=self.rng.choice([1, 4]))
        fingerprint = str(self.rng.random())
        added = self.ask(0, "add", Addition(message, enqueue_at, fingerprint, '{"n":1}'))
        if isinstance(added, Message):
            self.known.append(added)

    def _add_many(self) -> None:
        messages = [self._message() for _ in range(self.rng.randrange(1, 4))]
        additions = [
            Addition(each, each.send_at, str(self.rng.random()), '{"n":1}') for each in messages
        ]
        if self.rng.random() < 0.1:
            self.ask(2, "give_up", [messages[0].id])
        if self.ask(0, "add_together", additions):
            self.known += messages
        self.ask(0, "has", [messages[0].id, *self._some_ids()])
        self.ask(0, "with_keys", ["one", "two"])
        if self.rng.random() < 0.2:
            self.ask(0, "cancel", self._some_ids())

    def _join(self) -> None:
        """Store in a transaction of a caller's, whose end is the same for both."""
        ends: list[tuple[list[Any], bool]] = []
        some = [self._message() for _ in range(2)]
        commits = self.rng.random() < 0.7
        transaction = MemoryTransaction(self.tables)
        session = Session(transaction, transaction)

        def keep(of: Any, is_certain: bool) -> None:
            ends.append((of, is_certain))

        engine = self.database.engine.execution_options(isolation_level="SERIALIZABLE")
        with engine.connect() as connection:
            joined: Any = JoinedMessages(self.database).join(connection, keep)
            sides: tuple[Any, ...] = (joined, session.join(keep))
            for place, side in enumerate(sides):
                side.watch.joined.append(place)
            for message in some:
                for name, given, named in (
                    ("add", (Addition(message, message.send_at, "f", '{"n":1}'),), {}),
                    ("with_key", (self.rng.choice(["one", "two"]),), {}),
                    ("present", ([*self._some_ids(), message.id],), {}),
                ):
                    real, double = (_answer(getattr(side, name), given, named) for side in sides)
                    assert double == real, f"joined {name}"
            for side in (connection, session):
                (side.commit if commits else side.rollback)()
        assert sorted(ends) == [([0], True), ([1], True)]
        self.known += [each for each in some if each.id in self.tables.messages]
        self.compare("a transaction")

    def _opt_out(self) -> None:
        rng = self.rng
        who = rng.choice(["ada", *["bob"] * 4]), rng.choice([None, "sms", "push"])
        self.ask(3, rng.choice(["add", "remove", "remove"]), *who)
        self.ask(3, "among", [("ada", "sms"), ("bob", "push"), ("bob", "mail")])
        self.ask(3, "page", rng.choice([None, "bob"]), after=None, limit=9)
        self.ask(3, "scheduled", *who, after=None, limit=3)

    def _catch_up(self) -> None:
        if self.rng.random() < 0.5:
            self.ask(4, "expire", limit=50)  # which ones of equal times come first is open
            return
        taken = self.ask(4, "take", limit=2, ttl=TTL)
        if taken is not None:
            some = [each.message for each in taken.found]
            self.ask(4, *self.rng.choice([("put_back", some), ("give_up", some[0])]))

    def _change(self) -> None:
        id_ = self._some_id()
        what = self.rng.choice(["cancel", "move", "update", "take_back", "enqueue_again"])
        if what == "move" and id_ in self.tables.messages:
            found = self.ask(0, "movable", id_)
            found = found._replace(token=found.token - self.rng.choice([0, 0, 1]))
            send_at = self.clock.now() + self._wait()
            new = NewSlot(
                found, send_at=send_at, zone=None,
                next_attempt_at=self.rng.choice([send_at, send_at + timedelta(seconds=3)]),
                expires_at=send_at + TTL, expire_after=TTL,
                enqueue_at=send_at + self.rng.choice([timedelta(0), timedelta(seconds=2)]),
                asked_at=self.rng.choice([None, found.message.send_at]),
            )  # fmt: skip
            self.ask(0, "move", [new], within=self.rng.choice([timedelta(0), TTL]))
            self.known.append(self.stores[0][1].get(id_))  # type: ignore[attr-defined]
        elif what == "update":
            self.ask(0, "update", id_, body={"n": self.rng.randrange(9)})
        elif what == "take_back" and id_ in self.tables.messages:
            self.ask(0, "take_back", self.tables.messages[id_].message())
        elif what == "enqueue_again":
            self.ask(0, "enqueue_again", self._some_ids())
        elif what == "cancel" and id_ in self.tables.messages:
            token = self.tables.messages[id_].move_token
            self.ask(0, what, [id_], move_token=token - self.rng.choice([0, 0, 1]))

    def _claim(self) -> None:
        ahead = timedelta(milliseconds=self.rng.choice([0, 90]))
        self.marks.append(UUID(int=self.rng.getrandbits(128)))
        self.claims += self.ask(1, "claim", self._some_ids(), ahead=ahead, mark=self.marks[-1])
        if self.rng.random() < 0.3:
            self.ask(1, "unclaimed", self._some_ids())
            self.ask(1, "enqueue_when_due", self._some_ids())

    def _record(self) -> None:
        successes, failures = [], []
        for claim in self._some_claims():
            outcome = self.rng.choice(list(Outcome))
            if outcome is Outcome.SENT:
                successes.append(Success(claim, "a receipt"))
            else:
                again = outcome is Outcome.TEMPORARY and self.rng.random() < 0.7
                failures.append(Failure(claim, outcome, "why", self._wait() if again else None))
        self.ask(1, "record", successes, failures, enqueue_in=timedelta(seconds=-1))

    def _put_back(self) -> None:
        some = self._some_claims()
        if self.rng.random() < 0.3:
            self.ask(1, "renew", some)
        else:
            given = [(claim, self._wait()) for claim in some]
            seconds = self.rng.choice([-1, 1])
            self.ask(1, "put_back", given, enqueue_in=timedelta(seconds=seconds))
            self._snooze()

    def _snooze(self) -> None:
        """Claim something and put it back at once, as it is done without a permit."""
        mark = UUID(int=self.rng.getrandbits(128))
        some = self.ask(1, "claim", self._some_ids(), ahead=TTL, mark=mark)
        given = [(claim, self._wait()) for claim in some]
        self.ask(1, "put_back", given, enqueue_in=timedelta(seconds=-1))
        snoozed = self.ask(2, "snoozed", batch=1)
        if self.rng.random() < 0.5:
            self.ask(2, "bring_forward", [*snoozed[:1], *self._some_ids()])

    def _sweep(self) -> None:
        if self.rng.random() < 0.5:
            self.ask(2, "rescue", limit=100)
        else:
            due = self.ask(2, "due", limit=100)
            self.ask(2, "take_due", due, grace=timedelta(seconds=2))
        if self.marks:
            mark = self.rng.choice(self.marks[-5:])
            died = self.rng.random() < 0.7
            self.unbegun += self.ask(2, "unbegun", self._some_ids(), mark=mark, died=died)
        if self.unbegun and self.rng.random() < 0.5:
            some, died = [self.rng.choice(self.unbegun[-5:])], self.rng.random() < 0.7
            self.ask(2, "put_back", some, wait=self._wait(), died=died)
        if self.rng.random() < 0.2:
            self.ask(2, "prune", older_than=timedelta(seconds=20), limit=2)

    def _read(self) -> None:
        self.ask(0, "get", self._some_id())
        self.ask(0, "with_key", "one")
        self.ask(0, "attempts", self._some_id())
        self.ask(2, "reserved_times", self._some_ids())
        self.ask(2, "bar_moves", self._some_ids())
        self.ask(2, "unreleased", limit=100)
        self.ask(2, "mark_released", self._some_ids()[:1])
        memory = timedelta(seconds=20)
        self.ask(2, "reservations", memory=memory, batch=3)
        made = self.clock.now() - timedelta(seconds=30), self.clock.now()
        self.ask(2, "reservations", memory=memory, batch=3, created=made)
        self.ask(2, "count_reservations", memory=memory)
        self.ask(2, "permits", memory=memory, batch=3)


def _answer(call: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        answer = call(*given, **named)
    except DispatcherError as error:
        return repr(error)
    if hasattr(answer, "__next__"):
        return [each for page in answer for each in page]
    if call.__name__ in {"due", "take_due"}:
        return sorted(answer)
    return answer


@pytest.mark.parametrize("seed", a_third_of(range(6)))
def test_the_store_in_memory_is_the_store(seed: int, sqlite_template: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(sqlite_template, path)
    both = Both(path, seed)
    try:
        for _ in range(STEPS):
            both.step()
    finally:
        both.database.close()
    assert {Status.SENT, Status.FAILED, Status.HELD, Status.EXPIRED} & {
        row.status for row in both.tables.messages.values()
    }
