"""Helpers for users' tests: a transport in memory, messages, and a suite for transports.

They need no test framework.
"""

from dispatcher.testing.messages import a_message
from dispatcher.testing.transport_suite import TransportSuite
from dispatcher.transports.memory import MemoryTransport

__all__ = ["MemoryTransport", "TransportSuite", "a_message"]
