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

_MODULE_OF = {
    "MemoryTransport": "dispatcher.transports.local",
    "Outbox": "dispatcher.testing.travel",
    "Sent": "dispatcher.testing.travel",
    "MemoryDispatcher": "dispatcher.testing.travel",
    "Travel": "dispatcher.testing.travel",
    "TravelClock": "dispatcher.testing.clock",
    "TransportSuite": "dispatcher.testing.suite",
    "a_message": "dispatcher.testing.suite",
}
"""The first use of a name imports its module: pytest imports this package in every run."""


if not typing.TYPE_CHECKING:  # with it a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        found = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
