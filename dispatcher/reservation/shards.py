"""One shard's part of a message's terms, and the scripts that judge and book it.

Judging a long quota that is full but for single gaps takes more than one script may take. Then the
place is held, which all others count, and judged in bounded steps (``lua/check.lua``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import redis

from dispatcher.errors import IdempotencyConflict, ReservationsUnavailable
from dispatcher.redis.direct import Direct, packed
from dispatcher.redis.errors import cause, reason
from dispatcher.redis.scripts import source
from dispatcher.reservation.answers import translated
from dispatcher.reservation.places import (
    Batch,
    Blocked,
    Group,
    Moving,
    Place,
    Request,
    Submit,
    new_hold,
)
from dispatcher.reservation.posted import Posted
from dispatcher.reservation.terms import Rules
from dispatcher.reservation.words import ENDLESS, Told, Words
from dispatcher.times.send_time import to_ms

CLOSED = (
    "the windows are not complete; the sweep rebuilds them from the store, once a worker and a "
    "beat run"
)
RETRY_AFTER = timedelta(seconds=1)
"""When to ask again while windows are closed: a rebuild takes the settle time and some more."""
_MOST_CALLS = 10_000
_ID_BYTES = 16

Answer = int | Place | Blocked | IdempotencyConflict
"""When a message is booked, in ms; or the place of its twin, or why it has none."""
_Reply = int | list[Any]
_Attempt = Callable[[int, int, int, bytes], _Reply]


class Shards:
    """Judges, books and holds in one shard at a time. Raises ReservationsUnavailable."""

    def __init__(self, client: redis.Redis, rules: Rules, *, under_way_ms: int) -> None:
        self._client = client
        self._direct = Direct(client)
        self._rules = rules
        self._words = Words(rules, under_way_ms)
        self._under_way_ms = under_way_ms
        self._reserve = client.register_script(source("reservation/reserve"))
        self._next_slot = client.register_script(source("reservation/next_slot"))
        self._check = client.register_script(source("reservation/check"))
        self._hold = client.register_script(source("reservation/hold"))
        self._drop = client.register_script(source("reservation/drop"))
        self._move = client.register_script(source("reservation/move"))
        self._take = client.register_script(source("reservation/take"))
        self._release = client.register_script(source("reservation/release"))

    def book(
        self,
        group: Group,
        message_id: UUID,
        *,
        asked_ms: int,
        latest_ms: int,
        submit: Submit | None,
        pending_ahead_ms: int = 0,
    ) -> Place | Blocked:
        """Book the time asked for, or the first one after it up to ``latest_ms``."""

        def attempt(start_ms: int, latest_ms: int, step: int, hold: bytes) -> _Reply:
            names = [group.keys.pending, group.keys.epoch]
            twin: tuple[str, str] = ("", "")
            if submit is not None:
                names.append(group.keys.twins(submit.key))
                twin = (submit.fingerprint, submit.token)
            reply: _Reply = self._reserved(
                [*names, *group.windows],
                (pending_ahead_ms, self._under_way_ms + pending_ahead_ms),
                self._words.alone(group, start_ms, step),
                (message_id.bytes, start_ms, latest_ms, 1, hold, *twin),
            )
            if isinstance(reply, list) and reply[0] == b"conflict":
                raise IdempotencyConflict(submit.key if submit else "", UUID(bytes=reply[1]))
            return reply

        return self._searched(group, Place(message_id, asked_ms), latest_ms, attempt)

    def post_many(self, batches: Sequence[Batch]) -> Posted:
        """Send what books batches, each in one shard and in order; :meth:`answers` waits for it."""
        return Posted(self._client, self._reserve, [self._words.many(batch) for batch in batches])

    def answers(self, batches: Sequence[Batch], posted: Posted) -> list[list[Answer]]:
        """Return what came of the messages of each batch that was posted.

        A list is shorter than its batch where the next message takes more than one call.
        """
        with translated():
            replies = posted.replies()
        return [self._answers(*each) for each in zip(batches, replies, strict=True)]

    def release_many(self, places: Iterable[tuple[Group, UUID, Submit | None]]) -> list[bool]:
        """Give places back; tell which are free: those that no twin needs."""
        pipeline = self._client.pipeline(transaction=False)
        for group, message_id, submit in places:
            names = [group.keys.pending]
            if submit is not None:
                names.append(group.keys.twins(submit.key))
            words: list[bytes | str] = [message_id.bytes, submit.token if submit else ""]
            self._release(keys=[*names, *group.windows], args=words, client=pipeline)
        with translated():
            return [bool(freed) for freed in pipeline.execute()]

    def move(
        self,
        group: Group,
        message_id: UUID,
        *,
        hold: bytes,
        asked_ms: int,
        latest_ms: int,
        beside: bytes = b"",
        first: _Reply | None = None,
    ) -> Place | Blocked:
        """Hold another place for a message that has one, judged as if its own were free.

        And the one of another hold, ``beside``. ``first`` is what :meth:`ask_moves` was answered.
        """
        known = [] if first is None else [first]

        def attempt(start_ms: int, latest_ms: int, step: int, held: bytes) -> _Reply:
            del held  # once the place is held, the script answers with it
            if known:
                return known.pop()
            call = self._move_call(group, message_id, (hold, beside), (start_ms, latest_ms), step)
            reply: list[Any] = self._call(self._move, *call)
            return reply

        return self._searched(group, Place(message_id, asked_ms), latest_ms, attempt, hold=hold)

    def ask_moves(self, asked: Sequence[tuple[Group, Request, bytes]]) -> list[_Reply]:
        """Let the script hold a place for each of these, one after the other, sent together.

        :meth:`move` reads the answers, and asks on where the search takes more than one call.
        """
        return self._call_many(
            self._move,
            [
                self._move_call(
                    group, each.message_id, (hold, b""), (each.asked_ms, each.latest_ms), 0
                )
                for group, each, hold in asked
            ],
        )

    def slot(self, group: Group, start_ms: int, mover: UUID | None = None) -> int:
        """Return the first time at or after ``start_ms`` that fits. Books nothing.

        The places that ``mover`` has count as free.
        """
        own = mover.bytes if mover else b""
        for step in range(_MOST_CALLS):
            table = self._words.table(group, start_ms, step)
            words = [start_ms, own, *table]
            reply = self._call(self._next_slot, [group.keys.epoch, *group.windows], words)
            start_ms = reply[1]
            if reply[0] == b"slot":
                return start_ms
            if reply[0] == b"unsure":
                blocked = self._checked(group, mover, start_ms, b"")
                if blocked is None:
                    return start_ms
                start_ms = blocked.until_ms
        raise ReservationsUnavailable(ENDLESS)

    def have(self, held: Sequence[tuple[Sequence[Group], Moving]]) -> list[bool]:
        """Return for each hold whether it stands in all windows of its groups, at its time."""
        pipeline = self._client.pipeline(transaction=False)
        many = []
        for groups, moving in held:
            windows = [window for group in groups for window in group.windows]
            many.append(len(windows))
            for window in windows:
                pipeline.zscore(window, moving.hold)
        with translated():
            scores = iter(pipeline.execute())
        return [
            set(islice(scores, number)) == {to_ms(moving.send_at)}
            for number, (_, moving) in zip(many, held, strict=True)
        ]

    def take(self, held: Sequence[tuple[Group, Moving, int]]) -> list[bool]:
        """Make each hold the place of its message; False where a window has lost it.

        Also where it is older than what is remembered of moves. The number is the store's token.
        """
        calls = []
        for group, moving, token in held:
            names = [group.keys.pending, group.keys.moved(moving.message_id), *group.windows]
            words = [
                moving.message_id.bytes, moving.hold, to_ms(moving.send_at), moving.held_at_ms,
                token, self._under_way_ms,
            ]  # fmt: skip
            calls.append((names, words))
        return [taken == 1 for taken in self._call_many(self._take, calls)]

    def drop(self, holds: Sequence[tuple[Group, bytes]]) -> None:
        """Give up holds."""
        calls = [([group.keys.pending, *group.windows], [hold]) for group, hold in holds]
        self._call_many(self._drop, calls)

    def release(self, group: Group, message_id: UUID, submit: Submit | None) -> bool:
        """Give a place back; tell whether it is free, which it is not while a twin needs it."""
        names = [group.keys.pending]
        if submit is not None:
            names.append(group.keys.twins(submit.key))
        words = [message_id.bytes, submit.token if submit else ""]
        freed: int = self._call(self._release, [*names, *group.windows], words)
        return freed == 1

    def _answers(self, batch: Batch, replies: list[Any]) -> list[Answer]:
        if replies[:1] == [[b"closed"]]:
            raise closed()
        found: list[Answer] = []
        for place, reply in enumerate(replies):
            if isinstance(reply, int):
                found.append(reply)
            elif reply[0] == b"booked":
                found.append(Place(UUID(bytes=reply[2]), reply[1]))
            elif reply[0] == b"refused":
                found.append(self._blocked(batch.group(place), reply))
            elif reply[0] == b"conflict":
                submit = batch.requests[place].submit
                key = submit.key if submit else ""
                found.append(IdempotencyConflict(key, UUID(bytes=reply[1])))
        return found

    def _searched(
        self,
        group: Group,
        asked: Place,
        latest_ms: int,
        attempt: _Attempt,
        hold: bytes | None = None,
    ) -> Place | Blocked:
        """Repeat ``attempt`` until it finds a place, or cannot any more."""
        why: Blocked | None = None
        message_id, start_ms = asked.message_id, asked.at_ms
        for step in range(_MOST_CALLS):
            reply = attempt(start_ms, max(start_ms, latest_ms), step, b"")
            if isinstance(reply, int):
                return Place(message_id, reply)
            word, at_ms = reply[0], reply[1]
            if word == b"booked":
                return Place(UUID(bytes=reply[2]), at_ms)
            if word == b"held":
                return Place(message_id, *reply[1:])
            if word == b"unsure":
                if reply[2:]:
                    why = why or self._blocked(group, reply)
                place = self._book_slowly(group, message_id, at_ms, attempt, hold)
                if isinstance(place, Place):
                    return place
                why = why or place
                start_ms = place.until_ms
            else:
                blocked = self._blocked(group, reply)
                why = why or blocked
                if blocked.is_slot:
                    return why._replace(until_ms=at_ms, is_slot=True)
                start_ms = at_ms
            if start_ms > latest_ms:
                return why._replace(until_ms=start_ms, is_slot=False)
        raise ReservationsUnavailable(ENDLESS)

    def _book_slowly(
        self, group: Group, message_id: UUID, at_ms: int, attempt: _Attempt, hold: bytes | None
    ) -> Place | Blocked:
        """Hold a time, judge it in bounded steps, and book it if it fits."""
        own = hold or new_hold(message_id)
        names = [group.keys.pending, group.keys.epoch, *group.windows]
        keep = False
        try:
            if not self._call(self._hold, names, [own, at_ms]):
                raise closed()
            blocked = self._checked(group, message_id, at_ms, own)
            if blocked is not None:
                return blocked
            reply = attempt(at_ms, at_ms, 0, own)
            if isinstance(reply, int):
                return Place(message_id, reply)
            if reply[0] not in {b"booked", b"held"}:  # lost meanwhile: rebuilt or reconciled
                raise closed()
            keep = hold is not None
            if reply[0] == b"held":
                return Place(message_id, *reply[1:])
            return Place(UUID(bytes=reply[2]), reply[1])
        finally:
            if not keep:
                self.drop([(group, own)])

    def _checked(
        self, group: Group, message_id: UUID | None, at_ms: int, hold: bytes
    ) -> Blocked | None:
        """Judge one time in as many calls as it takes; None when it fits."""
        table = self._words.table(group, at_ms, 0)
        own = message_id.bytes if message_id else b""
        place: list[int] = [0, 0, 0]
        while True:
            words = [at_ms, own, hold, *place, *table]
            reply = self._call(self._check, [group.keys.epoch, *group.windows], words)
            if reply[0] == b"fits":
                return None
            if reply[0] == b"blocked":
                return self._blocked(group, reply)._replace(is_slot=False)
            place = reply[1:]

    def _blocked(self, group: Group, reply: list[Any]) -> Blocked:
        word, until_ms, place, number, *members = reply
        is_slot = word == b"refused"
        if place == 0:
            return Blocked(until_ms, None, None, (), is_slot)
        scope = group.scopes[place - 1]
        # What is shorter is no id: it counts, and the sweep sets its window aside.
        conflicting = tuple(UUID(bytes=each) for each in members if len(each) == _ID_BYTES)
        return Blocked(until_ms, scope, self._rules.quota(scope, number), conflicting, is_slot)

    def _reserved(
        self, names: list[str], first: Sequence[int], told: Told, last: Sequence[Any]
    ) -> _Reply:
        """Call ``reserve.lua`` for one message; what it is told is packed already."""

        def ask() -> Any:
            if self._direct.open:
                start = packed("EVALSHA", self._reserve.sha, len(names), *names, *first)
                many = 3 + len(names) + len(first) + len(told.words) + len(last)
                reply = self._direct.call(
                    b"*%d\r\n%b%b%b" % (many, start, told.packed, packed(*last))
                )
                if reply is not None:
                    return reply
            return self._reserve(keys=names, args=[*first, *told.words, *last])

        reply: _Reply = self._answer(ask)[0]
        return reply

    def _move_call(
        self,
        group: Group,
        message_id: UUID,
        holds: tuple[bytes, bytes],
        times_ms: tuple[int, int],
        step: int,
    ) -> tuple[list[str], list[Any]]:
        table = self._words.table(group, times_ms[0], step)
        names = [group.keys.pending, group.keys.epoch, *group.windows]
        return names, [message_id.bytes, *holds, *times_ms, *table]

    def _call_many(
        self, script: Any, calls: Sequence[tuple[list[str], Sequence[Any]]]
    ) -> list[Any]:
        """Return what a script answers to each of these calls, which are sent together."""
        if len(calls) == 1:
            return [self._call(script, *calls[0])]
        # Numbers come as they are sent: see Words.many.
        packed_calls = [
            (names, [b"%d" % word if isinstance(word, int) else word for word in words])
            for names, words in calls
        ]
        with translated():
            replies = Posted(self._client, script, packed_calls).replies()
        if any(isinstance(each, list) and each[0] == b"closed" for each in replies):
            raise closed()
        return replies

    def _call(self, script: Any, names: list[str], words: Sequence[Any]) -> Any:
        return self._answer(lambda: script(keys=names, args=words))

    def _answer(self, ask: Callable[[], Any]) -> Any:
        try:
            reply = ask()
        except redis.RedisError as error:
            raise ReservationsUnavailable(reason(error)) from cause(error)
        if isinstance(reply, list) and reply[0] in (b"closed", [b"closed"]):
            raise closed()
        return reply


def closed() -> ReservationsUnavailable:
    """Return the error for windows that are not complete."""
    return ReservationsUnavailable(CLOSED, retry_after=RETRY_AFTER)
