"""Helpers for users' tests: time travel, a transport in memory, and a suite for transports.

:class:`MemoryDispatcher` is a dispatcher in memory whose time a test moves; the pytest plugin has
it as the fixtures ``dispatcher``, ``outbox`` and ``travel``. Only the plugin needs pytest.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from dispatcher.testing.clock import TravelClock
    from dispatcher.testing.suite import TransportSuite, a_message
    from dispatcher.testing.travel import MemoryDispatcher, Outbox, Sent, Travel
    from dispatcher.transports.local import MemoryTransport

__all__ = [
    "MemoryDispatcher",
    "MemoryTransport",
    "Outbox",
    "Sent",
    "TransportSuite",
    "Travel",
    "TravelClock",
    "a_message",
]

if not typing.TYPE_CHECKING:  # with it a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import the modules at the first use: pytest imports this package in every run."""
        for module in ("testing.travel", "testing.suite", "transports.local"):
            names = vars(importlib.import_module(f"dispatcher.{module}"))
            if name in __all__ and name in names:
                return globals().setdefault(name, names[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
