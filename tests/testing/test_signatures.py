"""Each double has the calls of the class that it stands for: mypy sees the class only."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dispatcher import Settings
from dispatcher.app import App
from dispatcher.reservation.shards import Shards
from dispatcher.testing import app as memory_app
from dispatcher.testing.memory.shards import MemoryShards
from dispatcher.testing.travel import TravelClock
from dispatcher.times.clock import SystemClock

SETTINGS: dict[str, Any] = {
    "status_channel": "hooks",
    "channels": {"hooks": {"transport": "webhook", "options": {"payload": "body"}}},
}


def doubles(monkeypatch: pytest.MonkeyPatch) -> dict[type, type]:
    """Return the class of each double of a dispatcher in memory, by the class it stands for."""
    found: dict[type, type] = {Shards: MemoryShards}

    def note(kind: type, double: object) -> object:
        if double is not None:
            found[kind] = type(double)
        return double

    monkeypatch.setattr(memory_app, "_as", note)
    clock = TravelClock(SystemClock().now())
    app = memory_app.MemoryApp(Settings.load(**SETTINGS), clock, transport_of=lambda _: None)  # type: ignore[arg-type,return-value]  # nothing is sent
    for name in vars(memory_app.MemoryApp).keys() | vars(memory_app.TravelApp).keys():
        if hasattr(App, name) and name not in {"database", "redis", "plain_redis", "publisher"}:
            getattr(app, name)
    app.copies()
    return found


# The double has a caller of its own for these, or what calls them has a double itself, or needs
# servers: ``verify_windows`` asks for ``reservation_states``, ``erase`` for ``forget``.
ONLY_IN_MEMORY = {"Permits": {"scope_log"}, "Queue": {"next_at", "take"}}
ONLY_REAL = {
    "Copies": {"close"},
    "Permits": {"forget"},
    "SendLogs": {"leave", "recycle"},
    "StoreMaintenance": {"reservation_states"},
    "Upkeep": {"forget"},
}


def calls_of(kind: type) -> dict[str, list[tuple[str, object, object]]]:
    """Return the public methods of a class: names, kinds and defaults of their parameters."""
    return {
        name: [(each.name, each.kind, each.default)
               for each in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }  # fmt: skip


def test_a_double_has_the_calls_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """The promise: what works in memory works on servers, and the other way round."""
    found = doubles(monkeypatch)
    assert len(found) > 15, "the doubles are not seen any more"
    for kind, double in found.items():
        real, ours = calls_of(kind), calls_of(double)
        name = kind.__name__
        assert ours.keys() - real.keys() == ONLY_IN_MEMORY.get(name, set()), name
        assert real.keys() - ours.keys() == ONLY_REAL.get(name, set()), name
        for call in real.keys() & ours.keys():
            assert ours[call] == real[call], f"{name}.{call}"
