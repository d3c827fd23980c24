"""Series and events in stories: what callers ask of them, and which occurrences must be booked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dispatcher.app import App
from dispatcher.client import Events, SeriesCalls
from dispatcher.errors import DispatcherError, Unavailable
from dispatcher.times.recurrence import Recurrence
from dispatcher.times.send_time import from_ms, to_ms
from tests.simulation.scheduler import START, Process
from tests.support.lines import Lines, us

if TYPE_CHECKING:
    from tests.simulation.world import World

NAMES = tuple(f"s{number}" for number in range(4))
_SOON = timedelta(seconds=15)
_EVERYBODY = [
    ("ada", "Europe/Berlin", None), ("dan", "America/New_York", None),
    ("eve", "Asia/Kathmandu", None),
]  # fmt: skip
_RULES: Sequence[dict[str, Any]] = (
    {"rule": "FREQ=SECONDLY;INTERVAL=9", "count": 20},
    {"rule": "FREQ=SECONDLY;INTERVAL=13", "count": 12, "spread": timedelta(seconds=3)},
    {"rule": "FREQ=HOURLY"},
    # At noon UTC, by the clocks of each of them.
    {"rule": "FREQ=DAILY;BYHOUR=7,13,17;BYMINUTE=0,1,2,45,46,47;BYSECOND=5,35", "zone": "local"},
)


class Organiser:
    """Series and events as one process asks for them; what it is told is for the judge."""

    def __init__(self, world: World, process: Process, cases: App) -> None:
        self._world = world
        self._process = process
        self._rng = world.rng
        client: Any = SimpleNamespace(_app=cases)
        self._events, self.series = Events(client), SeriesCalls(client)

    def change_event(self) -> None:
        """Set an event, move it, perhaps several times at once, or cancel it."""
        rng, events = self._rng, self._world.events
        if rng.random() < 0.25 or not events:
            name, at = f"event {self._world.number()}", self.some_time()
            events.append(name)
            self.ask("set_event", name, partial(self._events.set, name, at), event_at_ms=to_ms(at))
            return
        name = rng.choice(events[-3:])
        if rng.random() < 0.1:
            self.ask("cancel_event", name, partial(self._events.cancel, name))
            events[:] = [event for event in events if event != name]
            return
        for _ in range(rng.choice([0, 0, 2])):
            self._world.scheduler.spawn(self._process, "a mover", partial(self._move, name))
        self._move(name)

    def some_time(self) -> datetime:
        return from_ms(to_ms(self._process.now()) + self._rng.randrange(3_000, 30_000))

    def _move(self, name: str) -> None:
        at, past = self.some_time(), self._rng.choice(["cancel", "refuse"])
        move = partial(self._events.move, name, at, past=cast("Any", past))
        self.ask("move_event", name, move, event_at_ms=to_ms(at), past=past)

    def add_series(self) -> str:
        rng = self._rng
        start = self._process.now().replace(microsecond=0) + rng.choice([0, 1]) * _SOON
        channel = rng.choice(["sms", "mail", "push", "push", "page"])
        return self.add(rng.choice(NAMES), channel=channel, start=start, **self._fields())

    def add(self, name: str, **fields: Any) -> str:
        act = partial(self.series.add, name, body={"text": name}, **fields)
        return self.ask("add_series", f"series:{name}", act, tag=name, key=None, digest="")

    def change_series(self) -> None:
        name, series = self._rng.choice(NAMES), self.series
        acts: dict[str, tuple[Callable[[], object], int]] = {
            "change_series": (partial(series.change, name, **self._fields()), 6),
            "pause_series": (partial(series.pause, name), 2),
            "resume_series": (partial(series.resume, name), 3),
            "remove_series": (partial(series.remove, name), 1),
        }
        (op,) = self._rng.choices(["", *acts], [6, *(share for _, share in acts.values())])
        if op:
            self.ask(op, f"series:{name}", acts[op][0])
        else:
            self.add_series()

    def _fields(self) -> dict[str, Any]:
        rng = self._rng
        return {
            "zone": "UTC",
            **rng.choice(_RULES),
            "recipients": rng.sample(_EVERYBODY, rng.choice([1, 1, 2])),
            "missed": rng.choice(["all", "last", "none"]),
            **rng.choice([{"conflict": "skip"}, {"conflict": "shift", "window": _SOON}]),
        }

    def end(self) -> None:
        """Resume and remove all series."""
        for name in NAMES:
            for op in ("resume_series", "remove_series"):
                act = partial(getattr(self.series, op.partition("_")[0]), name)
                while self.ask(op, f"series:{name}", act) == "unknown":
                    self._process.sleep(1.0)

    def ask(self, op: str, event: str, act: Callable[[], object], **asked: Any) -> str:
        world, line = self._world, {"n": f"{op} {self._world.number()}", "event": event}
        calls, who = world.facts.calls, self._process.name
        at = world.db_us() // 1_000 * 1_000  # SQL keeps milliseconds of what this ends
        calls.append({"kind": "call", "at": at, "op": op, "who": who, **line, **asked})
        world.tell(who, f"asks: {op}", event)
        try:
            act()
        except DispatcherError as error:
            answer = "unknown" if isinstance(error, Unavailable) else "refused"
            world.tell(who, "is told", str(error))
        else:
            answer = "ok"
            world.tell(who, "is told", "done")
        calls.append({"kind": "answer", "at": world.db_us(), "answer": answer, **line})
        return answer


class _Defined(NamedTuple):
    """One definition of a series: it is booked in ``spans``, but for those that were skipped."""

    definition: dict[str, Any]
    spans: list[tuple[datetime, datetime]]
    skipped: set[str]

    def occurrences(self, since: datetime, until: datetime) -> Iterator[tuple[str, str]]:
        """Yield who gets a message of which nominal time."""
        of = self.definition
        start = datetime.fromisoformat(of["start"])
        recurrence = Recurrence(of["rule"], start)
        for who, local, _ in of["recipients"]:
            zone = local if of["zone"] == "local" else of["zone"]
            for one in recurrence.between(zone, to_ms(since), to_ms(until)):
                yield who, one.nominal


def occurrences(world: World) -> Lines:
    """Yield what was to be booked by what SQL held at any time, and what was replaced.

    What lies before the time of a pass it may leave out, as missed.
    """
    ahead, known = world.settings.book_ahead, defaultdict[str, dict[str, _Defined]](dict)
    replaced: dict[str, dict[str, datetime]] = defaultdict(dict)
    """By series, since when its earlier definitions count no more, until this is cancelled."""
    for told in world.store.told():
        definitions, since, now = known[told.name], replaced[told.name], told.definition
        line = {"kind": "occurrence", "at": us(told.at), "event": told.name}
        if told.token in definitions:
            of = definitions[told.token]
            before = max(of.spans[-1][1], told.booked_until - ahead)
            if before < told.booked_until:
                of.spans.append((before, told.booked_until))
            of.skipped.update(nominal for nominal, _ in now["skipped"])
        else:
            begun = now.get("booked_from")
            begin = START if begun is None else datetime.fromisoformat(begun)
            since |= dict.fromkeys(definitions, begin)
            if now and "removed" not in now:
                span = told.booked_until, told.booked_until
                definitions[told.token] = _Defined(now, [span], set())
        if "replaces" not in now:
            for token, at in since.items():
                of = definitions[token]
                for who, nominal in of.occurrences(at, of.spans[-1][1] + 2 * ahead):
                    until = {"token": token, "scope": who, "nominal": nominal, "until": us(told.at)}
                    yield line | until
            since.clear()
        if not now:
            yield from _required(known.pop(told.name), line)
    for name, definitions in known.items():
        yield from _required(definitions, {"kind": "occurrence", "at": 0, "event": name})


def _required(definitions: dict[str, _Defined], line: dict[str, Any]) -> Lines:
    for token, of in definitions.items():
        for span in of.spans:
            for who, nominal in of.occurrences(*span):
                if nominal not in of.skipped:
                    yield line | {"token": token, "scope": who, "nominal": nominal}
