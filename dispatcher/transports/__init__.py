"""What carries messages to providers: one transport a file.

A transport has one method, ``send(message)``. It returns what the provider answered (or None)
once the provider has the message, and raises TemporaryFailure or PermanentFailure when it knows
why not; anything else it raises counts as temporary.
"""

from dispatcher.transports.base import Transport, load
from dispatcher.transports.console import ConsoleTransport
from dispatcher.transports.file import FileTransport
from dispatcher.transports.memory import MemoryTransport

__all__ = ["ConsoleTransport", "FileTransport", "MemoryTransport", "Transport", "load"]
