"""Whatever a caller gives, an error about it is ours, one line, and quotes little of it.

The front door has no servers here: what reaches one is Unavailable.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import uuid4

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatcher import Dispatcher, Events, InvalidValue, SeriesCalls, SeriesFields, Settings, errors
from dispatcher.errors import DispatcherError, quoted
from dispatcher.limiters import GCRA, Concurrency, CoolDown, FixedWindow, Limits, parse
from dispatcher.limiters.algorithms import CountPerLength
from dispatcher.quota import CalendarLimit, CalendarQuota, Limit, Quota, parse_limit, parse_quota
from dispatcher.selection import Wanted
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.zones import rules
from tests.support.limiters import exported_limits
from tests.support.refusals import settings_nowhere

Asks = Callable[[Dispatcher, Any], object]
SHOWN = 200
"""No more characters of a value than this are in an error."""


class Hostile:
    """Every method that an error could call fails."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("the object's own error")

    __repr__ = __str__ = __format__ = __eq__ = __lt__ = __hash__ = __bool__ = __len__ = _fail
    __iter__ = __contains__ = __int__ = __index__ = __float__ = _fail


class Loud:
    """Its repr is long, and has lines and marks that turn a terminal's text around."""

    def __repr__(self) -> str:
        return "\u202e\n\x1b[2J" + "y" * 100_000


class _NoTime:
    """Raises from every method that is asked, as pandas.NaT does."""

    def _raise(self, *_: object) -> Any:
        raise ValueError("the object's own error")

    utcoffset = astimezone = _raise
    __lt__ = __le__ = __floordiv__ = __add__ = __radd__ = __neg__ = _raise


class NoInstant(_NoTime, datetime):
    pass


class NoLength(_NoTime, timedelta):
    pass


VALUES: dict[str, Any] = {
    "whose methods fail": Hostile(),
    "in a list": [Hostile()],
    "in a mapping": {"a": Hostile()},
    "long text": "y" * 100_000,
    "many parts": "y/" * 300 + "y",
    "many spaces": "1" + " " * 1_000_000 + "x",
    "controls": "\u202e\n\x1b" * 1_000,
    "long bytes": b"y" * 100_000,
    "long number": 10**5_000,
    "long list": ["y" * 1_000] * 1_000,
    "long key": {"y" * 100_000: object()},
    "loud": Loud(),
    "of a class with a long name": type("y" * 100_000, (), {})(),
    "of a class without a name": type("", (), {})(),
}
TIMES = {"an instant that raises": NoInstant(2027, 1, 1), "a length that raises": NoLength(1)}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_quoted_on_one_short_line(name: str) -> None:
    value = VALUES[name]
    for text in (quoted(value), errors.kind_of(value)):
        assert text.isprintable()
        assert 1 <= len(text) <= SHOWN // 2


def test_a_value_is_quoted_as_it_is_written() -> None:
    assert quoted("a\n") == "'a\\n'"
    assert quoted(timedelta(seconds=5)) == "0:00:05"
    assert quoted(None) == "None"
    assert quoted(Hostile()) == "a Hostile"


def judge(call: Callable[[Any], object], values: Mapping[str, Any] = VALUES) -> None:
    """Fail unless a call takes each value, or refuses it as it should."""
    for name, value in values.items():
        error = raised(call, value)
        if error is None:
            continue
        assert isinstance(error, DispatcherError), f"{name}: {type(error)}"
        for text in (str(error), *map(str, vars(error).values())):
            assert "y" * (SHOWN + 1) not in text, name
            assert "the object's own error" not in text, name
            assert text.isprintable(), name
        if isinstance(error, InvalidValue):
            assert len(error.field) <= SHOWN, name
            assert len(error.problem) <= 2 * SHOWN, name


def raised(call: Callable[[Any], object], value: object) -> Exception | None:
    try:
        result = call(value)
        if isinstance(result, Iterator):
            next(result, None)
    except Exception as error:  # noqa: BLE001 - any that is not ours is what is looked for
        return error
    return None


def _calls(limit: type[CountPerLength]) -> dict[str, Callable[[Any], object]]:
    """Return what a limit that counts per length takes from callers, beside its own fields."""
    return {
        "parse": limit.parse,
        "count": lambda value: limit(value, "minute"),
        "period": lambda value: limit(5, value),
        "name": lambda value: limit(5, "day", name=value),
    }


def _key(value: object) -> object:
    return value if isinstance(value, str | bytes | int) else "x"


def giving(call: Callable[..., object], name: str) -> Callable[[Any], object]:
    return lambda value: call(**{name: value})


NOWHERE = redis.Redis(unix_socket_path="/nowhere/redis.sock", retry=Retry(NoBackoff(), 0))
LIMITER = FixedWindow(5, "minute").on(NOWHERE)
CALLS: dict[str, Callable[[Any], object]] = {
    "parse_quota": parse_quota,
    "parse_limit": parse_limit,
    "limiters.parse": parse,
    **{
        f"{limit.__name__} {what}": call
        for limit in exported_limits()
        if issubclass(limit, CountPerLength)
        for what, call in _calls(limit).items()
    },
    "zones.rules": rules,
    "Hours.parse": Hours.parse,
    "Hours": lambda value: Hours(((0, value),)) if isinstance(value, int) else None,
    "Quota": lambda value: Quota(value, 1_000),
    "Limit": lambda value: Limit(5, value),
    "CalendarQuota count": lambda value: CalendarQuota(value, "day", None),
    "CalendarQuota unit": lambda value: CalendarQuota(1, value, None),
    "CalendarQuota zone": lambda value: CalendarQuota(1, "day", value),
    "CalendarLimit zone": lambda value: CalendarLimit(1, "day", value),
    "FixedWindow align": lambda value: FixedWindow(5, "day", align=value),
    "GCRA burst": lambda value: GCRA(5, "day", max_burst=value),
    "Concurrency": lambda value: Concurrency(value, timedelta(seconds=1)),
    "CoolDown": lambda value: CoolDown(name=value),
    "Limits": lambda value: Limits([value]),
    "on": lambda value: FixedWindow(5, "day").on(value),
    "settings": Dispatcher,
    "acquire key": LIMITER.acquire,
    "acquire n": lambda value: LIMITER.acquire("ada", n=value),
    "acquire permit": lambda value: LIMITER.acquire("ada", permit=value),
    "acquire timeout": lambda value: LIMITER.acquire("ada", wait=True, timeout=value),
    **{
        f"on {name}": giving(partial(FixedWindow(5, "day").on, NOWHERE), name)
        for name in ("on_error", "prefix", "tag", "remember")
    },
    **{f"setting {name}": giving(Settings.load, name) for name in ("quotas", "zone", "horizon")},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_its_own_is_refused_by_an_error_of_ours(name: str) -> None:
    judge(CALLS[name])


@pytest.fixture(scope="module")
def front_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dispatcher]:
    settings = settings_nowhere(
        tmp_path_factory.mktemp("nowhere"),
        scopes={"tenant": {"quotas": ["1/day"]}},
        channels={
            "memory": {"transport": "memory", "templates": {"hello": {"text": "{{ name }}"}}},
            "mail": {
                "transport": "smtp",
                "options": {"url": "smtp://localhost", "from": "shop@shop.example"},
            },
            "hook": {"transport": "webhook", "options": {"payload": "body"}},
        },
        status_channel="hook",
    )
    with Dispatcher(settings) as dispatcher:
        yield dispatcher


GOOD: dict[str, Any] = {
    "channel": "memory", "recipient": "ada", "body": {"text": "x"}, "send_in": timedelta(days=1),
}  # fmt: skip
LOCAL: dict[str, Any] = {"send_in": None, "send_at": "2100-01-01T12:00", "zone": "Europe/Berlin"}
MAIL: dict[str, Any] = {"channel": "mail", "recipient": "ada@shop.example"}
SERIES = GOOD | {"name": "daily", "rule": "FREQ=DAILY"}
del SERIES["send_in"]
PARTS = ("subject", "text", "headers", "attachments", "reply_to")
NEEDED: dict[str, Any] = {
    "message_id": uuid4(), "message_ids": [uuid4()], "drafts": [], "recipient": "ada",
    "kind": "tenant", "name": "a", "quotas": "5/hour", "limits": "5/second",
    "at": "2100-01-01T12:00Z",
}  # fmt: skip
"""What methods need, and what follows is no value: code, iterables and flags of a program."""
NO_VALUES = {
    "self", "progress", "session", "drafts", "message_ids", "shards", "atomic", "oldest_first",
    "recipients",
}  # fmt: skip


OWNERS = {Events: "events", SeriesCalls: "series"}
"""The attribute of a dispatcher with the calls of each further class."""


def ask(method: str, name: str, /, of: type = Dispatcher, **more: Any) -> Asks:
    """Give a method a value under this name, and what it needs beside."""
    names = inspect.signature(getattr(of, method)).parameters
    needed = {key: NEEDED[key] for key in names if key in NEEDED}
    bases = {"submit": GOOD, "timeline": {"scope": "ada"}, "add": SERIES}
    base = bases.get(method, needed) | more
    call = operator.attrgetter(f"{OWNERS[of]}.{method}" if of in OWNERS else method)
    return lambda dispatcher, value: call(dispatcher)(**base | {name: value})


def asked() -> Iterator[tuple[str, Asks]]:
    """Yield each parameter of each method of a dispatcher, whose awaited ones are twins."""
    methods = [(of, *item) for of in (Dispatcher, *OWNERS) for item in vars(of).items()]
    for of, method, function in methods:
        is_twin = method[0] == "a" and method[1:] in vars(of)
        if method.startswith("_") or is_twin or not callable(function):
            continue
        names = inspect.signature(function).parameters.keys() - NO_VALUES
        if "wanted" in names:  # the filters of lists
            names = names - {"wanted"} | Wanted.__annotations__.keys()
        if "fields" in names:  # of a series
            names = (names - {"fields"} | SeriesFields.__annotations__.keys()) - NO_VALUES
        owner = f"{OWNERS[of]}." if of in OWNERS else ""
        yield from ((f"{owner}{method} {name}", ask(method, name, of)) for name in sorted(names))


def submit(part: str, **more: Any) -> Asks:
    """Submit a value as a part of the body."""
    base = GOOD | more
    return lambda dispatcher, value: dispatcher.submit(
        **base | {"body": {"text": "x", part: value}}
    )


ASKED: dict[str, Asks] = {
    **dict(asked()),
    "drafts": lambda dispatcher, value: dispatcher.submit_many([value]),
    "ids": lambda dispatcher, value: dispatcher.cancel_many([value]),
    **{f"submit local {name}": ask("submit", name, **LOCAL) for name in ("zone", "fold")},
    "data of a template": ask("submit", "data", body=None, template="hello"),
    **{f"mail {name}": ask("submit", name, **MAIL) for name in ("recipient", "body")},
    **{f"hook {name}": ask("submit", name, channel="hook") for name in ("recipient", "body")},
    **{f"mail {part}": submit(part, **MAIL) for part in PARTS},
    "a scope": lambda dispatcher, value: dispatcher.submit(**GOOD, scopes={"tenant": value}),
    "a kind": lambda dispatcher, value: dispatcher.submit(
        **GOOD, scopes=cast("dict[str, str]", {_key(value): "acme"})
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_front_door_refuses_it_by_an_error_of_ours(front_door: Dispatcher, name: str) -> None:
    is_of_times = name.startswith(("submit", "reschedule"))
    judge(lambda value: ASKED[name](front_door, value), VALUES | (TIMES if is_of_times else {}))
