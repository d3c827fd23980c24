"""What carries messages to providers."""

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
