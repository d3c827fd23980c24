"""What carries messages to providers: one transport a file.

A transport has one method, ``send(message)``. It returns what the provider answered (or None)
once the provider has the message, and raises TemporaryFailure or PermanentFailure when it knows
why not, PerhapsSent when it cannot know; anything else it raises counts as temporary.

``base`` says what a transport may have beside it, ``naming`` finds one by its name, ``checks`` asks
it about drafts, ``probing`` whether its provider is there.
"""

from dispatcher.transports.base import Transport, close_all, load
from dispatcher.transports.checks import Checks
from dispatcher.transports.console import ConsoleTransport
from dispatcher.transports.file import FileTransport
from dispatcher.transports.memory import MemoryTransport
from dispatcher.transports.probes import Probed, probe_all

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
