"""What carries messages to providers.

A transport has one method, ``send(message)``. It returns what the provider answered (or None)
once the provider has the message, and raises TemporaryFailure or PermanentFailure when it knows
why not, PerhapsSent when it cannot know; anything else it raises counts as temporary.
"""

from dispatcher.transports.base import Checks, Probed, Transport, close_all, load, probe_all
from dispatcher.transports.local import ConsoleTransport, FileTransport, MemoryTransport

__all__ = [
    "Checks",
    "ConsoleTransport",
    "FileTransport",
    "MemoryTransport",
    "Probed",
    "Transport",
    "close_all",
    "load",
    "probe_all",
]
